//! Fields and their OXM, NXM and ONF-experimenter headers.
