//! The HTTP interface. No request contains a path: runs are identified by the ids of the list.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;

use crate::Preset;
use crate::guard::{self, Guard};
use crate::library::{Library, lock};
use crate::page;
use crate::process::NotAsked;
use crate::run::{Run, video_type};
use crate::stage::Stages;

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) library: Arc<Library>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) preset: Arc<Preset>,
    pub(crate) stages: Arc<Stages>,
    /// Another one after each start: the numbers of changes start again.
    pub(crate) epoch: Arc<str>,
    pub(crate) title: Arc<str>,
}

/// The server's addresses.
pub(crate) fn router(shared: Shared) -> Router {
    let guard = Arc::clone(&shared.guard);
    Router::new()
        .route("/", get(async || page::index()))
        .route("/favicon.ico", get(async || StatusCode::NO_CONTENT))
        .route("/assets/{name}", get(asset))
        .route("/api/session", get(session))
        .route("/api/runs", get(runs))
        .route("/api/events", get(events))
        .route("/api/names", get(names))
        .route("/api/columns", get(columns))
        .route("/api/runs/{id}", get(details))
        .route("/api/runs/{id}/log", get(log))
        .route("/api/runs/{id}/videos/{number}", get(video))
        .route("/api/runs/{id}/live", get(live))
        .route("/api/runs/{id}/checkpoints", get(checkpoints))
        .route("/api/runs/{id}/play", post(play))
        .route("/api/runs/{id}/checkpoint", post(checkpoint))
        .route("/api/runs/{id}/stop", post(stop))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .with_state(shared)
}

async fn asset(Path(name): Path<String>) -> Response {
    page::file(&name)
}

async fn session(State(shared): State<Shared>) -> Json<Value> {
    Json(json!({ "token": shared.guard.action, "title": &*shared.title }))
}

/// Everything, and the cursor to continue from.
async fn runs(State(shared): State<Shared>) -> Response {
    let library = Arc::clone(&shared.library);
    blocking(move || {
        let (last, mut all) = library.since(0);
        all["cursor"] = cursor(&shared.epoch, last).into();
        Json(all).into_response()
    })
    .await
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: String,
}

fn cursor(epoch: &str, change: u64) -> String {
    format!("{epoch}-{change}")
}

/// Changes as they happen, each with a cursor. A browser that lost the connection sends its last one.
async fn events(
    State(shared): State<Shared>,
    Query(query): Query<After>,
    headers: HeaderMap,
) -> Response {
    let last = headers.get("last-event-id");
    let last = last.and_then(|last| last.to_str().ok());
    let known = last.unwrap_or(&query.after);
    let known = known.strip_prefix(&*shared.epoch);
    let known = known.and_then(|rest| rest.strip_prefix('-')?.parse().ok());
    let (send, receive) = tokio::sync::mpsc::channel::<Result<Event, Infallible>>(1);
    tokio::spawn(async move {
        let mut news = shared.library.subscribe();
        let mut after: u64 = known.unwrap_or(0);
        // A cursor of another start, or none: everything the page has is forgotten.
        let mut fresh = known.is_none();
        loop {
            let change = *news.borrow_and_update();
            if change > after || fresh {
                let library = Arc::clone(&shared.library);
                let from = if fresh { 0 } else { after };
                let read = tokio::task::spawn_blocking(move || library.since(from)).await;
                let Ok((last, mut what)) = read else { return };
                if fresh {
                    what["all"] = true.into();
                }
                let event = Event::default()
                    .id(cursor(&shared.epoch, last))
                    .data(what.to_string());
                if send.send(Ok(event)).await.is_err() {
                    return;
                }
                (after, fresh) = (last, false);
            }
            tokio::select! {
                changed = news.changed() => if changed.is_err() { return },
                () = send.closed() => return,
            }
        }
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(10));
    let stream = ReceiverStream::new(receive);
    Sse::new(stream).keep_alive(alive).into_response()
}

/// The columns that runs have.
async fn names(State(shared): State<Shared>) -> Response {
    blocking(move || {
        let (progress, eval) = shared.library.columns();
        Json(json!({ "progress": progress, "eval": eval })).into_response()
    })
    .await
}

/// Which columns of which runs: `runs=ID.GENERATION.ROW,…`, where the reader has the rows before ROW.
#[derive(Deserialize)]
struct Wanted {
    runs: String,
    /// One name per line.
    names: String,
    #[serde(default)]
    eval: bool,
}

const MOST_RUNS: usize = 500;

/// Numbers as 64-bit floats, after a description in JSON: its length in 4 bytes, the text filled with
/// spaces so that the numbers begin at a multiple of 8, then column after column.
async fn columns(State(shared): State<Shared>, Query(wanted): Query<Wanted>) -> Response {
    blocking(move || {
        let names: Vec<&str> = wanted.names.lines().collect();
        let mut described = Vec::new();
        let mut numbers: Vec<u8> = Vec::new();
        for item in wanted.runs.split(',').take(MOST_RUNS) {
            let mut parts = item.split('.');
            let id = parts.next().unwrap_or_default();
            let mut number = || parts.next()?.parse::<u32>().ok();
            let (Some(generation), Some(from)) = (number(), number()) else {
                return refused(StatusCode::BAD_REQUEST, "expected ID.GENERATION.ROW");
            };
            let Some(run) = shared.library.run(id) else {
                return unknown_run();
            };
            let mut run = lock(&run);
            let csv = match wanted.eval {
                true => &mut run.eval,
                false => &mut run.progress,
            };
            let part = csv.part(&names, generation, from as usize);
            let lengths: Vec<usize> = part.values.iter().map(Vec::len).collect();
            described.push(json!({
                "id": id,
                "generation": part.generation,
                "from": part.from,
                "rows": part.rows,
                "lengths": lengths,
            }));
            for value in part.values.iter().flatten() {
                numbers.extend_from_slice(&value.to_le_bytes());
            }
        }
        let mut text = Value::from(described).to_string();
        while (text.len() + 4) % 8 != 0 {
            text.push(' ');
        }
        let length = u32::try_from(text.len()).unwrap_or(0);
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&numbers);
        ([(CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
    })
    .await
}

async fn details(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    with_run(shared, id, |shared, run| {
        let info = lock(run).summary.info.clone();
        // Without the lock: it may take a while.
        let preset = (shared.preset)(&info);
        Json(lock(run).details(preset.as_ref())).into_response()
    })
    .await
}

#[derive(Deserialize)]
struct From {
    #[serde(default)]
    from: u64,
}

async fn log(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(query): Query<From>,
) -> Response {
    with_run(shared, id, move |_, run| {
        let (from, text) = lock(run).log(query.from);
        let to = from + text.len() as u64;
        Json(json!({ "from": from, "to": to, "text": text })).into_response()
    })
    .await
}

async fn video(
    State(shared): State<Shared>,
    Path((id, number)): Path<(String, usize)>,
) -> Response {
    with_run(shared, id, move |_, run| {
        let videos = lock(run).videos();
        let found = videos.get(number).and_then(|path| {
            let kind = video_type(path)?;
            Some((kind, std::fs::read(path).ok()?))
        });
        match found {
            Some((kind, bytes)) => ([(CONTENT_TYPE, kind)], bytes).into_response(),
            None => refused(StatusCode::NOT_FOUND, "the run has no such video"),
        }
    })
    .await
}

/// The state of the run's process: profile, roles, memory.
async fn live(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    with_run(shared, id, |_, run| Json(lock(run).live()).into_response()).await
}

async fn checkpoints(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    with_run(shared, id, |_, run| {
        Json(lock(run).checkpoints()).into_response()
    })
    .await
}

/// Pictures of the agent, for as long as the answer is read.
async fn play(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let Some(run) = shared.library.run(&id) else {
        return unknown_run();
    };
    let path = lock(&run).path().to_owned();
    let stages = Arc::clone(&shared.stages);
    let seat = tokio::task::spawn_blocking(move || stages.sit_down(&id, &path)).await;
    match seat {
        Ok(Ok(seat)) => {
            let pictures = Body::from_stream(seat.pictures());
            ([(CONTENT_TYPE, "application/octet-stream")], pictures).into_response()
        }
        Ok(Err(error)) => refused(StatusCode::CONFLICT, &error.to_string()),
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the request failed"),
    }
}

async fn checkpoint(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    with_run(shared, id, |_, run| {
        asked(
            run,
            Library::checkpoint(run),
            "asked a run for a checkpoint",
        )
    })
    .await
}

async fn stop(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    with_run(shared, id, |shared, run| {
        asked(run, shared.library.stop(run), "asked a run to stop")
    })
    .await
}

fn asked(run: &Mutex<Run>, result: Result<i32, NotAsked>, what: &str) -> Response {
    match result {
        Ok(process) => {
            tracing::info!(process, run = %lock(run).path().display(), "{what}");
            (StatusCode::ACCEPTED, Json(json!({ "process": process }))).into_response()
        }
        Err(error) => refused(StatusCode::CONFLICT, &error.to_string()),
    }
}

async fn with_run(
    shared: Shared,
    id: String,
    answer: impl FnOnce(&Shared, &Mutex<Run>) -> Response + Send + 'static,
) -> Response {
    match shared.library.run(&id) {
        Some(run) => blocking(move || answer(&shared, &run)).await,
        None => unknown_run(),
    }
}

/// Files are read on threads that may wait.
async fn blocking(answer: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(answer).await {
        Ok(response) => response,
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the request failed"),
    }
}

fn unknown_run() -> Response {
    refused(StatusCode::NOT_FOUND, "there is no such run")
}

fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}
