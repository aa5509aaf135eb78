//! A helper for streams to other hosts, and its peers.

mod hostile;
