//! tokio-boring on one current-thread runtime.
use boring::ssl::{SslAcceptor, SslFiletype, SslMethod, SslVersion};
fn main() {
    let mut b = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    b.set_certificate_chain_file(tls_peers::file("localhost.pem")).unwrap();
    b.set_private_key_file(tls_peers::file("localhost.key"), SslFiletype::PEM).unwrap();
    b.set_min_proto_version(Some(SslVersion::TLS1_3)).unwrap();
    let a = std::rc::Rc::new(b.build());
    tls_peers::serve(move |s| {
        let a = a.clone();
        async move { tokio_boring::accept(&a, s).await.ok() }
    })
}
