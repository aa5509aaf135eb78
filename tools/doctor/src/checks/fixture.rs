pub use crate::testing::*;
