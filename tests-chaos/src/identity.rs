//! Job: configurations for the TLS workloads and the soak, with a certificate that is in no repository.
//! State owned: the certificate, made once a process. Thread class: any thread.

use std::error::Error;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use boring::asn1::Asn1Time;
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::PKey;
use boring::x509::{X509, X509Name};
use epoxide_tls::{Pem, TlsConfig};

/// Longer than what the clocks jump in all of a long run: `epoxide-tls` takes the time of day of std, which does not jump.
const PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Server and client. The certificate is made once: all trials may show the same.
pub fn configs() -> Result<(TlsConfig, TlsConfig), String> {
    static IDENTITY: OnceLock<Result<[String; 2], String>> = OnceLock::new();
    let made = IDENTITY.get_or_init(|| identity().map_err(|error| error.to_string()));
    let [chain, key] = made.clone().map_err(|error| format!("no certificate: {error}"))?;
    let build = |made: io::Result<TlsConfig>| made.map_err(|error| format!("no configuration: {error}"));
    let server = TlsConfig::server(Pem::text(chain), Pem::text(key)).handshake_timeout(PATIENCE);
    let client = TlsConfig::client().danger_accept_any_certificate().handshake_timeout(PATIENCE);
    Ok((build(server.build())?, build(client.build())?))
}

/// A certificate that vouches for itself, and its key.
fn identity() -> Result<[String; 2], Box<dyn Error>> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let key = PKey::from_ec_key(EcKey::generate(&group)?)?;
    let mut name = X509Name::builder()?;
    name.append_entry_by_nid(Nid::COMMONNAME, "chaos")?;
    let name = name.build();
    let mut certificate = X509::builder()?;
    certificate.set_version(2)?;
    certificate.set_subject_name(&name)?;
    certificate.set_issuer_name(&name)?;
    certificate.set_pubkey(&key)?;
    certificate.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    certificate.set_not_after(&*Asn1Time::days_from_now(30)?)?;
    certificate.sign(&key, MessageDigest::sha256())?;
    let texts = [certificate.build().to_pem()?, key.private_key_to_pem_pkcs8()?];
    let [chain, key] = texts.map(String::from_utf8);
    Ok([chain?, key?])
}
