//! tokio-rustls (ring) on one current-thread runtime.
use std::{fs::File, io::BufReader, sync::Arc};
fn main() {
    let mut p = rustls::crypto::ring::default_provider();
    p.cipher_suites.retain(|s| s.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let open = |name| BufReader::new(File::open(tls_peers::file(name)).unwrap());
    let chain = rustls_pemfile::certs(&mut open("localhost.pem")).collect::<Result<_, _>>().unwrap();
    let key = rustls_pemfile::private_key(&mut open("localhost.key")).unwrap().unwrap();
    let c = rustls::ServerConfig::builder_with_provider(Arc::new(p))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let a = tokio_rustls::TlsAcceptor::from(Arc::new(c));
    tls_peers::serve(move |s| {
        let a = a.clone();
        async move { a.accept(s).await.ok() }
    })
}
