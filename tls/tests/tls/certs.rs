//! Certificates for tests, made in memory: no key is in the repository.

use boring::asn1::Asn1Time;
use boring::bn::{BigNum, MsbOption};
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::{PKey, Private};
use boring::rsa::Rsa;
use boring::x509::extension::{BasicConstraints, SubjectAlternativeName};
use boring::x509::{X509, X509Builder, X509Name};
use epoxide_tls::Pem;

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) certificate: X509,
    pub(crate) key: PKey<Private>,
}

impl Identity {
    pub(crate) fn chain_text(&self) -> String {
        String::from_utf8(self.certificate.to_pem().unwrap()).unwrap()
    }

    pub(crate) fn key_text(&self) -> String {
        String::from_utf8(self.key.private_key_to_pem_pkcs8().unwrap()).unwrap()
    }

    pub(crate) fn chain(&self) -> Pem {
        Pem::text(self.chain_text())
    }

    pub(crate) fn key(&self) -> Pem {
        Pem::text(self.key_text())
    }
}

pub(crate) fn ec_key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

pub(crate) fn rsa_key() -> PKey<Private> {
    PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap()
}

fn builder(common_name: &str, key: &PKey<Private>) -> X509Builder {
    let mut name = X509Name::builder().unwrap();
    name.append_entry_by_nid(Nid::COMMONNAME, common_name).unwrap();
    let mut serial = BigNum::new().unwrap();
    serial.rand(127, MsbOption::MAYBE_ZERO, false).unwrap();
    let mut certificate = X509::builder().unwrap();
    certificate.set_version(2).unwrap();
    certificate.set_serial_number(&serial.to_asn1_integer().unwrap()).unwrap();
    certificate.set_subject_name(&name.build()).unwrap();
    certificate.set_pubkey(key).unwrap();
    certificate.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    certificate.set_not_after(&Asn1Time::days_from_now(30).unwrap()).unwrap();
    certificate
}

/// A certificate authority of its own.
pub(crate) fn authority(common_name: &str) -> Identity {
    let key = ec_key();
    let mut certificate = builder(common_name, &key);
    certificate.set_issuer_name(&name_of(common_name)).unwrap();
    certificate.append_extension(&BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    certificate.sign(&key, MessageDigest::sha256()).unwrap();
    Identity { certificate: certificate.build(), key }
}

fn name_of(common_name: &str) -> X509Name {
    let mut name = X509Name::builder().unwrap();
    name.append_entry_by_nid(Nid::COMMONNAME, common_name).unwrap();
    name.build()
}

impl Identity {
    /// A certificate that this authority has signed, for a host name or a client.
    pub(crate) fn issue(&self, common_name: &str) -> Self {
        self.issue_for(common_name, ec_key())
    }

    pub(crate) fn issue_for(&self, common_name: &str, key: PKey<Private>) -> Self {
        let mut certificate = builder(common_name, &key);
        certificate.set_issuer_name(self.certificate.subject_name()).unwrap();
        let context = certificate.x509v3_context(Some(&self.certificate), None);
        let names = SubjectAlternativeName::new().dns(common_name).ip("127.0.0.1").build(&context).unwrap();
        certificate.append_extension(&names).unwrap();
        certificate.sign(&self.key, MessageDigest::sha256()).unwrap();
        Self { certificate: certificate.build(), key }
    }

    /// One without a host name: for a client with an odd name.
    pub(crate) fn issue_named(&self, common_name: &str) -> Self {
        let key = ec_key();
        let mut certificate = builder(common_name, &key);
        certificate.set_issuer_name(self.certificate.subject_name()).unwrap();
        certificate.sign(&self.key, MessageDigest::sha256()).unwrap();
        Self { certificate: certificate.build(), key }
    }
}
