//! SECURITY.md's table says what this crate does.

use epoxide_pipes::hub::HubOptions;
use epoxide_pipes::{ClientOptions, HttpOptions};
use epoxide_tests_e2e::limits_table::check_defaults;

#[test]
fn the_defaults_of_the_hub_and_of_http() {
    check_defaults(&HubOptions::default()); // and of BacklogLimits, inside it
    check_defaults(&HttpOptions::default());
    check_defaults(&ClientOptions::default()); // and of ConnectOptions
}
