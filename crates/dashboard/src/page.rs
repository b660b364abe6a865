//! The page: its files are part of the program.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};

const INDEX: &str = include_str!("../page/index.html");

/// Name, media type and content.
const FILES: [(&str, &str, &str); 13] = [
    ("style.css", CSS, include_str!("../page/style.css")),
    ("main.js", SCRIPT, include_str!("../page/main.js")),
    ("store.js", SCRIPT, include_str!("../page/store.js")),
    ("filter.js", SCRIPT, include_str!("../page/filter.js")),
    ("format.js", SCRIPT, include_str!("../page/format.js")),
    ("table.js", SCRIPT, include_str!("../page/table.js")),
    ("curves.js", SCRIPT, include_str!("../page/curves.js")),
    ("run.js", SCRIPT, include_str!("../page/run.js")),
    ("process.js", SCRIPT, include_str!("../page/process.js")),
    ("stage.js", SCRIPT, include_str!("../page/stage.js")),
    ("queues.js", SCRIPT, include_str!("../page/queues.js")),
    (
        "uplot.js",
        SCRIPT,
        include_str!("../vendor/uplot/uPlot.iife.min.js"),
    ),
    (
        "uplot.css",
        CSS,
        include_str!("../vendor/uplot/uPlot.min.css"),
    ),
];

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page itself.
pub(crate) fn index() -> Response {
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], INDEX).into_response()
}

/// One of its files.
pub(crate) fn file(name: &str) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, content)) => ([(CONTENT_TYPE, *kind)], *content).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
