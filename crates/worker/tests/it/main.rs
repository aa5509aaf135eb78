//! Workers with threads of their own.

mod runtime;
