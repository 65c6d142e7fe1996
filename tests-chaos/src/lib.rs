//! Not yet begun: see the crate's description.
