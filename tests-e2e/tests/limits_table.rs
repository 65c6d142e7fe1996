//! SECURITY.md's table says what the code does: the types of `epoxide`, and every constant. Those of `epoxide-pipes` and
//! `epoxide-tls` have tests of the same name.

use epoxide::workers::WorkersConfig;
use epoxide::{ConnectOptions, ListenOptions, ReactorConfig, SharedLimits};
use epoxide_tests_e2e::limits_table::{Value, check_defaults, rows, value_in};

#[test]
fn the_defaults_of_the_runtime() {
    check_defaults(&ReactorConfig::default());
    check_defaults(&ListenOptions::default());
    check_defaults(&ConnectOptions::default());
    check_defaults(&SharedLimits::default());
    check_defaults(&WorkersConfig::default());
}

#[test]
fn every_constant_has_the_value_that_the_table_says() {
    let mut seen = 0;
    for row in rows() {
        let Some(file) = &row.file else { continue };
        assert_eq!(value_in(file, &row.name), row.default, "SECURITY.md, `{}`", row.name);
        seen += 1;
    }
    assert!(seen > 20, "vacuity: {seen} constants were found");
}

/// These are said in words, or by a builder that does not show them.
#[test]
fn what_a_builder_keeps_to_itself() {
    let row = |name: &str| rows().into_iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"));
    assert_eq!(row("Builder::grace").default, value_in("runtime/src/runtime/builder.rs", "grace"));
    let left = value_in("runtime/src/runtime/launch.rs", "LEFT_FOR_OTHERS");
    assert_eq!(left, Value::Number(64));
    assert_eq!(row("Builder::max_connections").default, Value::Word("descriptor limit less 64".into()));
    assert_eq!(row("Builder::reactors").default, Value::Word("one per allowed CPU".into()));
}

/// A type that no test compares with the code would be a table of hopes.
#[test]
fn every_type_in_the_table_is_compared_by_some_test() {
    let compared = [
        "Builder",
        "ReactorConfig",
        "ListenOptions",
        "ConnectOptions",
        "SharedLimits",
        "WorkersConfig", // here
        "HubOptions",
        "BacklogLimits",
        "HttpOptions",
        "ClientOptions", // pipes
        "ServerBuilder", // tls
    ];
    for row in rows().iter().filter(|row| row.file.is_none()) {
        let of = row.name.split("::").next().unwrap_or_default();
        assert!(compared.contains(&of), "{}", row.name);
    }
}
