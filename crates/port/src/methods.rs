//! Methods of ports that say nothing of their own, each by its name: the traits have no defaults, by which a port that wraps
//! another one would answer in its place.

/// Methods of a port that wraps another one, which lies in the named field: that one is asked.
///
/// ```ignore
/// impl WakeUp for Wrapper {
///     vmlane_port::forward! { inner;
///         fn disarm(&mut self);
///         fn glance(&self) -> Glance;
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:tt;) => {};
    ($inner:tt; fn $name:ident(&mut $this:ident $(, $value:ident: $of:ty)*) $(-> $out:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name(&mut $this $(, $value: $of)*) $(-> $out)? {
            $this.$inner.$name($($value),*)
        }
        $crate::forward! { $inner; $($rest)* }
    };
    ($inner:tt; fn $name:ident(&$this:ident $(, $value:ident: $of:ty)*) $(-> $out:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name(&$this $(, $value: $of)*) $(-> $out)? {
            $this.$inner.$name($($value),*)
        }
        $crate::forward! { $inner; $($rest)* }
    };
}

/// Methods of a port that is no wrapper and has nothing to say there: of a [`FramePort`](crate::FramePort) and its
/// [`WakeUp`](crate::WakeUp).
#[macro_export]
macro_rules! plain {
    ($($method:ident),+ $(,)?) => { $($crate::plain! { @ $method })+ };
    // Of a frame port.
    (@ take_overhead) => {
        fn take_overhead(&mut self) -> usize {
            0
        }
    };
    (@ changed) => {
        fn changed(&mut self) -> bool {
            false
        }
    };
    (@ refresh) => {
        fn refresh(&mut self) {}
    };
    (@ fail) => {
        fn fail(&mut self) {}
    };
    // How a worker waits for it.
    (@ arm) => {
        fn arm(&mut self) -> bool {
            false
        }
    };
    (@ disarm) => {
        fn disarm(&mut self) {}
    };
    (@ glance) => {
        fn glance(&self) -> $crate::Glance {
            $crate::Glance::Turn
        }
    };
    (@ signs) => {
        fn signs(&self, _: &mut ::std::vec::Vec<$crate::Sign>) -> bool {
            false
        }
    };
    (@ doorbell_fd) => {
        fn doorbell_fd(&self) -> ::std::option::Option<::std::os::fd::BorrowedFd<'_>> {
            ::std::option::Option::None
        }
    };
    (@ readable_fd) => {
        fn readable_fd(&self) -> ::std::option::Option<::std::os::fd::BorrowedFd<'_>> {
            ::std::option::Option::None
        }
    };
}
