//! Command descriptors and completions: 16 bytes each.
