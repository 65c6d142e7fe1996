//! SECURITY.md's table says what this crate does.

use epoxide_tests_e2e::limits_table::check_shown;
use epoxide_tls::{Pem, TlsConfig};

/// What a builder shows of the options that servers and clients have in common.
fn common(builder: &str) -> &str {
    let from = builder.find("Common { ").expect("a builder shows its options");
    let len = builder[from..].find(" }").expect("they end");
    &builder[from..from + len + 2]
}

#[test]
fn the_defaults_of_both_builders() {
    let server = format!("{:?}", TlsConfig::server(Pem::text("chain"), Pem::text("key")));
    let client = format!("{:?}", TlsConfig::client());
    check_shown(&common(&server).replacen("Common", "ServerBuilder", 1));
    assert_eq!(common(&server), common(&client));
}
