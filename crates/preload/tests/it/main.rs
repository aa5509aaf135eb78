//! The library as programs meet it.

mod abi;
