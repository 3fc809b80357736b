//! Classes of adapters' errors.

/// What to do after an adapter refused a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The table is full: wait until a rule is removed, or for some time.
    Full,
    /// Rules of this form are refused, or the rules in the table exclude them.
    Form,
    /// Try again soon.
    Busy,
    /// The adapter is removed or does not work.
    Ill,
}

/// The class of an error number (positive, as in errno.h).
pub fn class(errno: i32) -> Class {
    match errno {
        libc::ENOSPC | libc::ENOMEM | libc::ENOBUFS => Class::Full,
        libc::EINVAL | libc::ENOTSUP | libc::ENOSYS | libc::EEXIST | libc::EPERM => Class::Form,
        libc::EBUSY | libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR => Class::Busy,
        _ => Class::Ill,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers() {
        assert_eq!(class(libc::ENOBUFS), Class::Full);
        assert_eq!(class(libc::ENOSYS), Class::Form);
        assert_eq!(class(libc::EAGAIN), Class::Busy);
        assert_eq!([libc::EIO, libc::ENODEV, 0, 9999].map(class), [Class::Ill; 4]);
    }
}
