//! The words of the errors, their kinds as `io::Error`, and the causes that they lead on to.

use bytes::Bytes;
use epoxide::CloseReason;
use epoxide_pipes::hub::{BroadcastError, Hub, HubOptions, JoinError, Policy, Verdict, websocket_close};
use epoxide_pipes::{ClientOptions, HttpClient, HttpClientError, LimitError};
use http_body_util::Full;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

const RESET: CloseReason = CloseReason::PeerReset { errno: 104 };

#[test]
fn a_hub_that_refuses_says_why() {
    let joins = [
        (JoinError::Closed, ErrorKind::NotConnected, "closed"),
        (JoinError::Full, ErrorKind::QuotaExceeded, "HubOptions::members"),
        (JoinError::Ended(RESET), ErrorKind::ConnectionReset, "reset"),
    ];
    for (error, kind, word) in joins {
        assert!(error.to_string().starts_with("cannot join: ") && error.to_string().contains(word), "{error}");
        let io = io::Error::from(error);
        assert_eq!(io.kind(), kind);
        assert!(io.to_string().contains(word), "{io}");
    }
    let frame = Bytes::from_static(b"s3cr3t");
    let casts = [
        (BroadcastError::Closed(frame.clone()), ErrorKind::NotConnected, "closed", "Closed(..)"),
        (BroadcastError::Full(frame.clone()), ErrorKind::QuotaExceeded, "HubOptions::bytes", "Full(..)"),
    ];
    for (error, kind, word, shown) in casts {
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(format!("{error:?}"), shown, "a frame is not shown");
        assert_eq!(error.clone().into_inner(), frame);
        let io = io::Error::from(error);
        assert_eq!(io.kind(), kind);
        assert_eq!(io.downcast::<BroadcastError>().unwrap().into_inner(), frame, "it comes back");
    }
}

#[test]
fn a_hub_and_its_policies_show_themselves() {
    let policies = [
        (Policy::DropNewest, "DropNewest"),
        (Policy::DropOldest, "DropOldest"),
        (Policy::Latest, "Latest"),
        (Policy::Disconnect(websocket_close(1013)), "Disconnect("),
        (Policy::Block(Duration::from_secs(1)), "Block(1s)"),
        (Policy::Ask(Arc::new(|_| Verdict::Keep)), "Ask(..)"),
    ];
    for (policy, shown) in policies {
        assert!(format!("{policy:?}").starts_with(shown), "{policy:?}");
    }
    let hub = Hub::new(HubOptions::sse()).unwrap();
    assert!(format!("{hub:?}").contains("members: 0, closed: false"), "{hub:?}");
}

#[test]
fn a_call_that_was_too_long_is_no_error_of_its_service() {
    let elapsed = LimitError::<io::Error>::Elapsed(Duration::from_millis(20));
    assert_eq!(elapsed.to_string(), "the call took longer than 20ms");
    assert!(elapsed.source().is_none());
    let own = LimitError::Service(io::Error::from_raw_os_error(24));
    assert!(own.to_string().contains("os error 24"), "{own}");
    assert!(own.source().is_some_and(|source| source.is::<io::Error>()));
}

#[test]
fn a_request_that_failed_leads_on_to_its_cause() {
    let client = epoxide::block_on(async {
        let here = epoxide::ReactorHandle::current().expect("block_on runs a reactor");
        let client = HttpClient::<Full<Bytes>>::new(here, ClientOptions::default()).unwrap();
        // Nobody listens: it was bound, and is closed again.
        let addr = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
        let request = hyper::Request::get(format!("http://{addr}/")).body(Full::default()).unwrap();
        let refused = client.request(request).await.map(drop).unwrap_err();
        assert!(matches!(&refused, HttpClientError::Connect(error) if error.kind() == ErrorKind::ConnectionRefused));
        assert!(refused.to_string().contains(&addr.to_string()), "{refused}");
        assert!(refused.source().is_some_and(|source| source.is::<io::Error>()));
        let nowhere = client.request(hyper::Request::new(Full::default())).await.map(drop).unwrap_err();
        assert!(nowhere.source().is_none() && nowhere.to_string().contains("host"), "{nowhere}");
        client
    });
    assert!(format!("{client:?}").starts_with("HttpClient"));
}
