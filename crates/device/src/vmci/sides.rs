//! One value for each side of a queue pair, or of a connection.

use std::ops::{Index, IndexMut};

use vmlane_port::Side;

/// What there is one of for each side. Side A created the pair, or opened the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides<T> {
    pub a: T,
    pub b: T,
}

impl<T> Sides<T> {
    pub fn new(a: T, b: T) -> Sides<T> {
        Sides { a, b }
    }

    /// Side A's is made first.
    pub fn from_fn(mut make: impl FnMut(Side) -> T) -> Sides<T> {
        let a = make(Side::A);
        Sides { a, b: make(Side::B) }
    }

    pub fn each_ref(&self) -> Sides<&T> {
        Sides { a: &self.a, b: &self.b }
    }

    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> Sides<U> {
        let a = change(self.a);
        Sides { a, b: change(self.b) }
    }

    /// Side A's first.
    pub fn into_array(self) -> [T; 2] {
        [self.a, self.b]
    }
}

impl<T> Index<Side> for Sides<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

impl<T> IndexMut<Side> for Sides<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }
}
