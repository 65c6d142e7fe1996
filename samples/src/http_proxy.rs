//! A request passed on to another server: the reverse proxy of HTTP/1.
//!
//! Job: rewrite what belongs to one hop (RFC 9110, section 7.6), and stream both bodies. State: the client's pool, one a
//! reactor. Thread class: any thread.

use crate::cli::ServerArgs;
use crate::server;
use crate::upstream::Upstream;
use bytes::Bytes;
use epoxide::Connection;
use epoxide_pipes::{ClientOptions, HttpClient, HttpClientError, HttpOptions, serve_http};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use std::convert::Infallible;
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;

/// Headers of one hop.
const ONE_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Runs the proxy in front of `upstream` (`host:port`); each reactor has a client of its own.
///
/// # Errors
/// As [`server::run`].
pub fn run(name: &'static str, args: &ServerArgs, upstream: String) -> io::Result<()> {
    let upstream = Arc::new(Upstream::new(name, upstream));
    let hint = |addr| server::with_a_server_at(upstream.addr(), format!("curl http://{addr}/"));
    server::run_saying(name, args, hint, |server| {
        let upstream = upstream.clone();
        server.listen_with(args.target(), move |reactor| {
            let upstream = upstream.clone();
            let client = HttpClient::new(reactor.clone(), ClientOptions::default()).expect("the defaults work");
            move |connection| serve(connection, client.clone(), upstream.clone())
        });
    })
}

/// Serves a connection by asking `upstream` each of its requests.
///
/// # Errors
/// Why the connection ended, unless the client ended it.
pub async fn serve(connection: Connection, client: HttpClient<Incoming>, upstream: Arc<Upstream>) -> io::Result<()> {
    let from = connection.peer_addr().ok().and_then(|addr| HeaderValue::from_str(&addr.ip().to_string()).ok());
    let service = service_fn(move |request| {
        let (client, upstream) = (client.clone(), upstream.clone());
        let request = passed_on(request, upstream.addr(), from.clone());
        async move { Ok::<_, Infallible>(ask(&client, request, &upstream).await) }
    });
    serve_http(connection, service, HttpOptions::default()).await
}

type Answer = Response<Either<epoxide_pipes::ClientBody<Incoming>, Full<Bytes>>>;

async fn ask(
    client: &HttpClient<Incoming>,
    request: Result<Request<Incoming>, StatusCode>,
    upstream: &Upstream,
) -> Answer {
    let request = match request {
        Ok(request) => request,
        Err(status) => return refusal(status, "this cannot be passed on\n"),
    };
    let result = client.request(request).await;
    if result.is_ok() {
        upstream.is_up();
    }
    match result {
        // Nobody asked for it: `Upgrade` stays here.
        Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
            refusal(StatusCode::BAD_GATEWAY, "the server behind speaks another protocol\n")
        }
        Ok(mut answer) => {
            without_one_hop(answer.headers_mut());
            answer.map(Either::Left)
        }
        Err(HttpClientError::Timeout { .. }) => refusal(StatusCode::GATEWAY_TIMEOUT, "the server behind is slow\n"),
        // Not the server behind: the request's own body broke off, or was none.
        Err(HttpClientError::Http { error, .. }) if error.is_user() => {
            refusal(StatusCode::BAD_REQUEST, "the request's body is broken\n")
        }
        Err(error) => {
            match &error {
                HttpClientError::Connect(_) => upstream.is_down(&error),
                error => upstream.say(format_args!("{error}")),
            }
            refusal(StatusCode::BAD_GATEWAY, "the server behind does not answer\n")
        }
    }
}

fn refusal(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::new(Bytes::from_static(text.as_bytes()))));
    *answer.status_mut() = status;
    answer
}

/// The request as the server behind gets it, or why it gets none.
fn passed_on<B: Body>(
    mut request: Request<B>,
    upstream: &str,
    from: Option<HeaderValue>,
) -> Result<Request<B>, StatusCode> {
    if request.method() == Method::CONNECT {
        return Err(StatusCode::NOT_IMPLEMENTED);
    }
    if !has_one_host(&request) {
        return Err(StatusCode::BAD_REQUEST);
    }
    // The target's host counts (RFC 9112, 3.2.2), and over HTTP/2 it is the only one (RFC 9113, 8.3.1).
    if let Some(asked) = request.uri().authority() {
        let host = asked.as_str().rsplit('@').next().unwrap_or_default();
        let host = HeaderValue::from_str(host).map_err(|_| StatusCode::BAD_REQUEST)?;
        request.headers_mut().insert(header::HOST, host);
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let uri = Uri::builder().scheme("http").authority(upstream).path_and_query(path).build();
    *request.uri_mut() = uri.map_err(|_| StatusCode::BAD_REQUEST)?;
    let has_body = !request.body().is_end_stream();
    without_one_hop(request.headers_mut());
    if let Some(from) = from {
        request.headers_mut().append(HeaderName::from_static("x-forwarded-for"), from);
    }
    if !has_body {
        request.headers_mut().remove(header::EXPECT);
    }
    Ok(request)
}

/// RFC 9112, 3.2: one `Host` that can be one. HTTP/1.0 and HTTP/2 may leave it out, and it may be empty.
fn has_one_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let named = match (hosts.next(), hosts.next()) {
        (None, _) => return request.version() != Version::HTTP_11,
        (Some(host), None) => host.as_bytes(),
        (Some(_), Some(_)) => return false,
    };
    let Ok(authority) = Authority::try_from(named) else { return named.is_empty() };
    let host = authority.host();
    // The parser only counts brackets: they are for an address.
    if host.contains(['[', ']']) {
        let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if address.is_none_or(|address| address.parse::<Ipv6Addr>().is_err()) {
            return false;
        }
    }
    // Behind the name nothing, or a colon and digits. (`port` says `None` to a port that is no number.)
    let behind = authority.as_str().strip_prefix(host);
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    behind.is_some_and(|behind| behind.is_empty() || behind.strip_prefix(':').is_some_and(is_port))
}

/// Removes what belongs to one hop, and what `Connection` names as such: of `Host` nobody may say that.
fn without_one_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| name != header::HOST)
        .collect();
    for name in named.iter().chain(&ONE_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_one_hop_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("accept", "*/*"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        without_one_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    fn passed(change: impl FnOnce(&mut Request<Full<Bytes>>)) -> Result<HeaderMap, StatusCode> {
        let mut request = Request::default();
        change(&mut request);
        passed_on(request, "behind:81", None).map(|request| {
            assert_eq!(request.uri().authority().unwrap(), "behind:81");
            request.headers().clone()
        })
    }

    #[test]
    fn the_host_behind_is_told_which_host_was_asked_for() {
        let host = |uri: &str, named: &[&'static str]| {
            passed(|request| {
                *request.uri_mut() = uri.parse().unwrap();
                for name in named {
                    request.headers_mut().append(header::HOST, HeaderValue::from_static(name));
                }
            })
            .map(|headers| headers.get(header::HOST).map(|host| host.to_str().unwrap().to_owned()))
        };
        let is = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(host("/path", &["site"]), is("site"));
        // An absolute target, whose host outdoes the header, and as HTTP/2 brings it.
        assert_eq!(host("http://site:8/path", &["other"]), is("site:8"));
        let headers = passed(|request| {
            *request.version_mut() = Version::HTTP_2;
            *request.uri_mut() = "http://site:8/path".parse().unwrap();
        });
        assert_eq!(headers.unwrap()[header::HOST], "site:8");
        assert_eq!(host("http://me:pw@site/path", &["other"]), is("site"));
        for right in ["", "site:", "site:80", "[::1]", "[::1]:80"] {
            assert_eq!(host("/path", &[right]), is(right));
        }
        for wrong in [
            &[][..],
            &["site", "other"],
            &["site", "site"],
            &["me@site"],
            &["a site"],
            &["site/path"],
            &["site:x"],
            &["[::1]x"],
            &["[::1]80"],
            &["site[1]"],
            &["[site]"],
            &["[]"],
        ] {
            assert_eq!(host("/path", wrong), Err(StatusCode::BAD_REQUEST), "{wrong:?}");
        }
        // Who may leave it out.
        for version in [Version::HTTP_10, Version::HTTP_2] {
            let headers = passed(|request| *request.version_mut() = version);
            assert!(!headers.unwrap().contains_key(header::HOST), "{version:?}");
        }
    }

    /// Else a client could have the server behind take the request for one to itself, whatever host was asked for.
    #[test]
    fn a_host_is_no_matter_of_one_hop() {
        let headers = passed(|request| {
            let headers = request.headers_mut();
            headers.insert(header::HOST, HeaderValue::from_static("site"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("Host, x-private"));
            headers.insert("x-private", HeaderValue::from_static("1"));
        });
        let expected = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("site"))]);
        assert_eq!(headers, Ok(expected));
    }

    #[test]
    fn tunnels_are_refused() {
        let tunnel = passed(|request| {
            *request.method_mut() = Method::CONNECT;
            *request.uri_mut() = "inside:22".parse().unwrap();
        });
        assert_eq!(tunnel, Err(StatusCode::NOT_IMPLEMENTED));
    }
}
