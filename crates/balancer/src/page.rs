// SPDX-License-Identifier: Apache-2.0
//! The page for people at `/`: files that `page/` has built, as they are committed. It shows
//! what the API answers and asks for nothing else.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Scripts, styles and requests of its own alone, and no frame of another page.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
#[derive(Clone, Copy)]
struct Asset {
    path: &'static str,
    kind: &'static str,
    body: &'static [u8],
}

const ASSETS: [Asset; 4] = [
    Asset {
        path: "/",
        kind: "text/html; charset=utf-8",
        body: include_bytes!("../page/index.html"),
    },
    Asset {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        body: include_bytes!("../page/page.js"),
    },
    Asset {
        path: "/page.css",
        kind: "text/css; charset=utf-8",
        body: include_bytes!("../page/page.css"),
    },
    Asset {
        path: "/icon.svg",
        kind: "image/svg+xml",
        body: include_bytes!("../page/icon.svg"),
    },
];

/// Where its files are.
pub(crate) const PATHS: [&str; ASSETS.len()] = {
    let mut paths = [""; ASSETS.len()];
    let mut index = 0;
    while index < paths.len() {
        paths[index] = ASSETS[index].path;
        index += 1;
    }
    paths
};

/// Its files.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ASSETS.into_iter().fold(Router::new(), |router, asset| {
        router.route(
            asset.path,
            get(move |headers: HeaderMap| async move { asset.answer(&headers) }),
        )
    })
}

impl Asset {
    /// Asked for again each time, so that the page is the daemon's own after an upgrade, and
    /// sent only if it is another.
    fn answer(self, headers: &HeaderMap) -> Response {
        let tag = self.tag();
        let known = headers.get_all(header::IF_NONE_MATCH).iter();
        let known = known.filter_map(|value| value.to_str().ok());
        let is_known = known
            .flat_map(|tags| tags.split(','))
            .any(|known| known.trim() == tag);
        let about = [
            (header::ETAG, HeaderValue::try_from(tag)),
            (
                header::CACHE_CONTROL,
                Ok(HeaderValue::from_static("no-cache")),
            ),
        ];
        let about: HeaderMap = about
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.ok()?)))
            .collect();
        match is_known {
            true => (StatusCode::NOT_MODIFIED, about).into_response(),
            false => (
                about,
                [
                    (header::CONTENT_TYPE, self.kind),
                    (header::CONTENT_SECURITY_POLICY, POLICY),
                    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                    (header::REFERRER_POLICY, "no-referrer"),
                ],
                self.body,
            )
                .into_response(),
        }
    }

    /// Another one for other bytes.
    fn tag(self) -> String {
        let mut hasher = DefaultHasher::new();
        self.body.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(path: &str, known: &str) -> (StatusCode, HeaderMap, String) {
        let request = Request::get(path).header(header::IF_NONE_MATCH, known);
        let request = request.body(Body::empty()).unwrap();
        let answer = router::<()>()
            .with_state(())
            .oneshot(request)
            .await
            .unwrap();
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (parts.status, parts.headers, body)
    }

    #[tokio::test]
    async fn files_are_sent_once() {
        for asset in ASSETS {
            let (status, headers, body) = get(asset.path, "\"other\"").await;
            assert_eq!((status, body.as_bytes()), (StatusCode::OK, asset.body));
            assert_eq!(headers[header::CONTENT_TYPE], asset.kind);
            assert_eq!(headers[header::CONTENT_SECURITY_POLICY], POLICY);
            let tag = headers[header::ETAG].to_str().unwrap();
            let (status, headers, body) = get(asset.path, &format!("\"a\", {tag}")).await;
            assert_eq!((status, body.as_str()), (StatusCode::NOT_MODIFIED, ""));
            assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
        }
    }

    /// The policy would forbid what is inline, and the page's files are all that is served.
    #[tokio::test]
    async fn the_page_asks_for_its_own_files_alone() {
        let (_, _, page) = get("/", "").await;
        let quoted = page.split('"').skip(1).step_by(2);
        let wanted: Vec<_> = quoted
            .filter(|text| text.contains(".js") || text.contains(".css") || text.contains(".svg"))
            .collect();
        assert_eq!(wanted.len(), ASSETS.len() - 1, "{wanted:?}");
        for path in wanted {
            assert_eq!(
                get(&format!("/{path}"), "").await.0,
                StatusCode::OK,
                "{path}"
            );
        }
        for outside in [
            "http:", "https:", "style=\"", "<style", "onclick", "<script>",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
