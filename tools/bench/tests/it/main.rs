//! Whole measurements, and peers that spoil them.

mod hostile;
mod measure;
mod tiny;
