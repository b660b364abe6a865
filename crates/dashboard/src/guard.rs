//! Access control: the token, the cookie it is exchanged for, and the allowed `Host` headers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use subtle::ConstantTimeEq as _;

/// The secrets of one start of the server.
pub(crate) struct Guard {
    /// In the address that is printed.
    pub(crate) token: String,
    /// In the cookie, which scripts cannot read.
    session: String,
    /// In the header of a request that changes something. Only a page of this server can learn it.
    pub(crate) action: String,
    cookie: String,
    /// Names besides addresses and `localhost`.
    names: Vec<String>,
    /// Whether requests may come by any address of this machine.
    any_address: bool,
}

/// The header that requests which change something need.
pub(crate) const ACTION: HeaderName = HeaderName::from_static("x-starling-token");

impl Guard {
    /// New secrets for a server at this address, which the user called `host`.
    pub(crate) fn new(host: &str, address: SocketAddr) -> Result<Self, getrandom::Error> {
        Ok(Self {
            token: secret()?,
            session: secret()?,
            action: secret()?,
            cookie: format!("starling-{}", address.port()),
            names: vec![
                host.to_lowercase(),
                starling_record::host_name().to_lowercase(),
            ],
            any_address: !address.ip().is_loopback(),
        })
    }

    /// Whether a `Host` header names this server. A page of another site whose name was made to point
    /// to this machine has that site's name there. The port may be that of a tunnel.
    fn knows(&self, host: Option<&HeaderValue>) -> bool {
        let Some(host) = host.and_then(|host| host.to_str().ok()) else {
            return false;
        };
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next(),
            None => host.split(':').next(),
        };
        let name = name.unwrap_or_default().to_lowercase();
        if name == "localhost" {
            return true;
        }
        match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || self.any_address,
            Err(_) => self.any_address && self.names.contains(&name),
        }
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(COOKIE).iter();
        let mut cookies = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='));
        cookies.any(|(name, value)| name == self.cookie && same(value, &self.session))
    }

    /// Whether a request may change something.
    fn may_act(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(ACTION).and_then(|value| value.to_str().ok());
        let origin = headers.get(ORIGIN).and_then(|value| value.to_str().ok());
        let host = headers.get(HOST).and_then(|value| value.to_str().ok());
        let own_page = origin.is_none_or(|origin| {
            let site = origin.split_once("://").map(|(_, site)| site);
            site.is_some() && site == host
        });
        own_page && given.is_some_and(|given| same(given, &self.action))
    }
}

/// Checks a request, and adds the headers that all answers have.
pub(crate) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = answer(&guard, request, next).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (
            "content-security-policy",
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    response
}

async fn answer(guard: &Guard, request: Request, next: Next) -> Response {
    if !guard.knows(request.headers().get(HOST)) {
        return refused(
            StatusCode::FORBIDDEN,
            "This server is not called by that name. Use the address that starling dashboard printed.",
        );
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let token = match request.uri().path() {
        "/" if is_read => token_of(request.uri().query().unwrap_or_default()),
        _ => None,
    };
    let by_token = token.is_some_and(|token| same(token, &guard.token));
    if !by_token && (token.is_some() || !guard.has_cookie(request.headers())) {
        return refused(
            StatusCode::UNAUTHORIZED,
            "The token is missing or wrong. Open the whole address that starling dashboard printed; \
             it has another token after each start.",
        );
    }
    if !is_read && !guard.may_act(request.headers()) {
        return refused(
            StatusCode::FORBIDDEN,
            "This request needs the token of the page that it comes from.",
        );
    }
    let mut response = next.run(request).await;
    if by_token {
        let cookie = format!(
            "{}={}; Path=/; HttpOnly; SameSite=Strict",
            guard.cookie, guard.session
        );
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
    }
    response
}

fn token_of(query: &str) -> Option<&str> {
    query
        .split('&')
        .find_map(|part| part.strip_prefix("token="))
}

fn refused(status: StatusCode, why: &'static str) -> Response {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut response = (status, Body::from(why)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

fn same(given: &str, secret: &str) -> bool {
    given.as_bytes().ct_eq(secret.as_bytes()).into()
}

/// 192 random bits, as text.
pub(crate) fn secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_refused() {
        let knows =
            |guard: &Guard, host: &str| guard.knows(Some(&HeaderValue::from_str(host).unwrap()));
        let local = Guard::new("127.0.0.1", "127.0.0.1:80".parse().unwrap()).unwrap();
        for host in ["127.0.0.1:80", "localhost:9000", "[::1]:80", "LOCALHOST"] {
            assert!(knows(&local, host), "{host}");
        }
        for host in [
            "evil.example",
            "10.0.0.1:80",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil",
        ] {
            assert!(!knows(&local, host), "{host}");
        }
        assert!(!local.knows(None));
        let open = Guard::new("gpu1", "10.0.0.1:80".parse().unwrap()).unwrap();
        for host in ["10.0.0.1:80", "gpu1:80", "[fe80::1]:80", "localhost:3"] {
            assert!(knows(&open, host), "{host}");
        }
        assert!(!knows(&open, "evil.example:80"));
    }

    #[test]
    fn secrets_differ() {
        let guard = Guard::new("x", "127.0.0.1:80".parse().unwrap()).unwrap();
        assert_eq!(guard.token.len(), 48);
        assert!(guard.token != guard.session && guard.session != guard.action);
    }
}
