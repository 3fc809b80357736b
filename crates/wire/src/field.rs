//! The macro that makes a view, and how numbers are laid down.

/// A value at a fixed place in a header; numbers in big-endian order.
pub trait Field: Copy {
    /// Bytes taken.
    const LEN: usize;
    /// Reads the value from exactly `LEN` bytes.
    fn read(b: &[u8]) -> Self;
    /// Writes the value to exactly `LEN` bytes.
    fn write(self, b: &mut [u8]);
}

macro_rules! number {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const LEN: usize = size_of::<$t>();
            #[inline]
            fn read(b: &[u8]) -> Self {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(b);
                <$t>::from_be_bytes(raw)
            }
            #[inline]
            fn write(self, b: &mut [u8]) {
                b.copy_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
number!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    const LEN: usize = N;
    #[inline]
    fn read(b: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(b);
        raw
    }
    #[inline]
    fn write(self, b: &mut [u8]) {
        b.copy_from_slice(&self);
    }
}

/// Reads a field at byte `at`; the caller has checked the length.
#[inline]
pub fn get<T: Field>(b: &[u8], at: usize) -> T {
    T::read(&b[at..at + T::LEN])
}

/// Writes a field at byte `at`; the caller has checked the length.
#[inline]
pub fn set<T: Field>(b: &mut [u8], at: usize, v: T) {
    v.write(&mut b[at..at + T::LEN]);
}

/// `header! { /// doc Name, minimum length, { /// doc getter setter: type @ offset; ... } }`
///
/// Makes the struct, its fields, and `bytes()`; the length check `fits` is what `new` asks.
macro_rules! header {
    ($(#[$doc:meta])* $name:ident, $len:expr,
     { $($(#[$fdoc:meta])* $get:ident $set:ident: $ty:ty, $off:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<B>(B);

        impl<B: AsRef<[u8]>> $name<B> {
            /// Bytes of the fixed part.
            pub const LEN: usize = $len;

            /// The view, if the bytes hold the whole header.
            #[inline]
            pub fn new(bytes: B) -> Option<Self> {
                if Self::fits(bytes.as_ref()) { Some($name(bytes)) } else { None }
            }

            /// All bytes given to `new`.
            #[inline]
            pub fn bytes(&self) -> &[u8] {
                self.0.as_ref()
            }

            $($(#[$fdoc])*
            #[inline]
            pub fn $get(&self) -> $ty {
                $crate::field::get(self.0.as_ref(), $off)
            })*
        }

        impl<B: AsRef<[u8]> + AsMut<[u8]>> $name<B> {
            $(/// Sets the field of the same name.
            #[inline]
            pub fn $set(&mut self, v: $ty) {
                $crate::field::set(self.0.as_mut(), $off, v);
            })*
        }
    };
}
pub(crate) use header;
