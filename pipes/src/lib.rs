//! Buffer pipes, stream adapters and a broadcast hub on epoxide connections.

pub mod transport;
