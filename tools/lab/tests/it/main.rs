//! Labs with real guests.

mod lab;
