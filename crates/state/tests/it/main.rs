//! State in shared files, as other processes have it.

mod forgery;
