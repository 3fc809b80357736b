//! What an adapter's error numbers are taken to mean.

/// What to do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The table is full: no more until a rule goes, or some time has passed.
    Full,
    /// Rules of this form are refused, or those already there exclude them.
    Form,
    /// Try again soon.
    Busy,
    /// The adapter is gone or ill.
    Ill,
}

/// By error number (positive, as in errno.h).
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
