//! Buffer pipes, stream adapters and a broadcast hub on epoxide connections.

pub mod hub;
pub mod transport;

pub use hub::Hub;
