//! How a port that wraps another one forwards what it has no answer of its own to.

/// Declares the trait of what wraps something: it has every method of the listed traits, each of which asks
/// the one inside unless the wrapper answers by itself. A type that implements it has the listed traits. A
/// method that is new in one of these is an error here until it is listed, and then is forwarded by all
/// wrappers.
macro_rules! wrapper {
    (
        $(#[$doc:meta])*
        pub trait $wrapper:ident for $inner:ty;
        $(
            impl $trait:ident {
                &mut self { $( fn $change:ident($($arg:ident: $of:ty),*) $(-> $out:ty)?; )* }
                &self { $( fn $ask:ident($($key:ident: $key_of:ty),*) $(-> $answer:ty)?; )* }
            }
        )+
    ) => {
        $(#[$doc])*
        pub trait $wrapper: Send + ::std::any::Any {
            /// The one inside.
            fn inner(&self) -> &$inner;

            /// The same, to be changed.
            fn inner_mut(&mut self) -> &mut $inner;

            $($(
                #[inline]
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($change), "`].")]
                fn $change(&mut self, $($arg: $of),*) $(-> $out)? {
                    self.inner_mut().$change($($arg),*)
                }
            )*
            $(
                #[inline]
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($ask), "`].")]
                fn $ask(&self, $($key: $key_of),*) $(-> $answer)? {
                    self.inner().$ask($($key),*)
                }
            )*)+
        }

        $(
            impl<W: $wrapper> $trait for W {
                $(
                    #[inline]
                    fn $change(&mut self, $($arg: $of),*) $(-> $out)? {
                        <W as $wrapper>::$change(self, $($arg),*)
                    }
                )*
                $(
                    #[inline]
                    fn $ask(&self, $($key: $key_of),*) $(-> $answer)? {
                        <W as $wrapper>::$ask(self, $($key),*)
                    }
                )*
            }
        )+
    };
}
