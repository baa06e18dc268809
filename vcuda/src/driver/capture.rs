//! Capture: work added to a capturing stream becomes nodes of a graph. Modes and refusals are as documented.

use std::cell::Cell;
use std::collections::HashMap;
use std::thread::ThreadId;

use super::graph::{Graph, Node, NodeWork};
use super::{CUresult, Driver, Outcome, Tables};
use crate::schedule::Work;

/// `CUstreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// Unsafe calls of all threads are refused.
    Global,
    /// Unsafe calls of the capturing thread are refused.
    ThreadLocal,
    /// No call is refused for being unsafe.
    Relaxed,
}

impl CaptureMode {
    /// The mode of a number; `None` for one that is none.
    pub fn from_number(number: i32) -> Option<CaptureMode> {
        match number {
            0 => Some(CaptureMode::Global),
            1 => Some(CaptureMode::ThreadLocal),
            2 => Some(CaptureMode::Relaxed),
            _ => None,
        }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        match self {
            CaptureMode::Global => 0,
            CaptureMode::ThreadLocal => 1,
            CaptureMode::Relaxed => 2,
        }
    }
}

/// What `cuStreamGetCaptureInfo` answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureInfo {
    /// 0: not capturing, 1: capturing, 2: the capture is no longer valid.
    pub status: i32,
    /// A number for the capture.
    pub id: u64,
    /// The graph that is being made.
    pub graph: u64,
    /// The nodes that the stream's next one will depend on.
    pub dependencies: Vec<u64>,
}

/// All captures of the process.
#[derive(Debug, Default)]
pub(super) struct Captures {
    captures: HashMap<u64, Capture>,
    of_stream: HashMap<u64, u64>,
    /// Events last recorded in a capture: its id, and the nodes.
    of_event: HashMap<u64, (u64, Vec<usize>)>,
    next: u64,
}

#[derive(Debug)]
struct Capture {
    graph: u64,
    origin: u64,
    mode: CaptureMode,
    thread: ThreadId,
    valid: bool,
    /// The last nodes of each stream that takes part.
    ends: HashMap<u64, Vec<usize>>,
}

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// `cuThreadExchangeStreamCaptureMode`: sets this thread's mode and gives back the one before.
pub fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.replace(mode)
}

impl Driver {
    /// Adds work to a stream, or to the graph that the stream captures (then there is no work to wait for).
    pub(super) fn enqueue(&self, handle: u64, work: Work) -> Outcome<Option<u64>> {
        let (stream, current) = self.stream(handle)?;
        let mut tables = self.tables();
        if let Some(id) = tables.captures.of_stream.get(&stream).copied() {
            let handle = self.engine.lock().new_handle();
            tables.add_node(
                id,
                stream,
                Node { handle, context: current.context, work: NodeWork::Work(work), after: Vec::new() },
            )?;
            return Ok(None);
        }
        self.refuse_implicit(&mut tables, stream)?;
        drop(tables);
        self.engine.submit(stream, work, &[]).map(Some)
    }

    /// Whether work added to a stream is captured.
    pub(super) fn is_captured(&self, handle: u64) -> Outcome<bool> {
        let (stream, _) = self.stream(handle)?;
        Ok(self.tables().captures.of_stream.contains_key(&stream))
    }

    /// The legacy stream would wait for a capturing blocking stream: refused, and the capture is lost.
    fn refuse_implicit(&self, tables: &mut Tables, stream: u64) -> Outcome {
        let world = self.engine.lock();
        let Some(line) = world.streams.get(&stream).filter(|line| line.legacy) else { return Ok(()) };
        let is_in_the_way = |entry: (&u64, &u64)| {
            let other = world.streams.get(entry.0)?;
            (other.context == line.context && other.is_blocking()).then_some(*entry.1)
        };
        let hit = tables.captures.of_stream.iter().find_map(is_in_the_way);
        let Some(id) = hit else { return Ok(()) };
        if let Some(capture) = tables.captures.captures.get_mut(&id) {
            capture.valid = false;
        }
        Err(CUresult::STREAM_CAPTURE_IMPLICIT)
    }

    /// A call that is unsafe during capture: refused as the modes say, and the captures that refuse it are lost.
    pub(super) fn guard_capture(&self) -> Outcome {
        let own_mode = MODE.get();
        if own_mode == CaptureMode::Relaxed {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let mut tables = self.tables();
        let mut refused = false;
        for capture in tables.captures.captures.values_mut() {
            let own = capture.thread == thread && capture.mode != CaptureMode::Relaxed;
            let others = own_mode == CaptureMode::Global && capture.mode == CaptureMode::Global;
            if own || others {
                capture.valid = false;
                refused = true;
            }
        }
        if refused { Err(CUresult::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses a call that cannot be made on a capturing stream, and invalidates the capture.
    pub(super) fn refuse_capturing(&self, stream: u64) -> Outcome {
        let mut tables = self.tables();
        if let Some(id) = tables.captures.of_stream.get(&stream).copied() {
            if let Some(capture) = tables.captures.captures.get_mut(&id) {
                capture.valid = false;
            }
            return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.refuse_implicit(&mut tables, stream)
    }

    pub(super) fn invalidate_capture_of(&self, stream: u64) {
        let mut tables = self.tables();
        if let Some(id) = tables.captures.of_stream.get(&stream).copied()
            && let Some(capture) = tables.captures.captures.get_mut(&id)
        {
            capture.valid = false;
        }
    }

    pub(super) fn refuse_captured_event(&self, event: u64) -> Outcome {
        if self.tables().captures.of_event.contains_key(&event) { Err(CUresult::CAPTURED_EVENT) } else { Ok(()) }
    }

    pub(super) fn forget_captured_event(&self, event: u64) {
        self.tables().captures.of_event.remove(&event);
    }

    /// Forgets the captures in streams of a context that is going.
    pub(super) fn drop_captures(&self, context: u64) {
        let mut tables = self.tables();
        let world = self.engine.lock();
        let of_context = |stream: &u64| world.streams.get(stream).is_none_or(|stream| stream.context == context);
        let gone: Vec<u64> = tables
            .captures
            .captures
            .iter()
            .filter(|(_, capture)| of_context(&capture.origin))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            tables.captures.end(id);
        }
    }

    /// Records an event in a capturing stream; false if the stream does not capture.
    pub(super) fn capture_record(&self, stream: u64, event: u64, as_node: bool) -> Outcome<bool> {
        let mut tables = self.tables();
        let Some(id) = tables.captures.of_stream.get(&stream).copied() else {
            self.refuse_implicit(&mut tables, stream)?;
            tables.captures.of_event.remove(&event);
            return Ok(false);
        };
        if as_node {
            let (handle, context) = self.node_place(stream);
            let node = Node { handle, context, work: NodeWork::Work(Work::Record { event }), after: Vec::new() };
            tables.add_node(id, stream, node)?;
            return Ok(true);
        }
        let ends = tables.captures.valid(id)?.ends.get(&stream).cloned().unwrap_or_default();
        tables.captures.of_event.insert(event, (id, ends));
        Ok(true)
    }

    /// A stream waits for an event while one of the two belongs to a capture; false if neither does.
    pub(super) fn capture_wait(&self, stream: u64, event: u64, as_node: bool) -> Outcome<bool> {
        let mut tables = self.tables();
        let of_stream = tables.captures.of_stream.get(&stream).copied();
        if let (Some(id), true) = (of_stream, as_node) {
            let (handle, context) = self.node_place(stream);
            tables.add_node(id, stream, Node { handle, context, work: NodeWork::Wait { event }, after: Vec::new() })?;
            return Ok(true);
        }
        let of_event = tables.captures.of_event.get(&event).cloned();
        match (of_stream, of_event) {
            (None, None) => {
                self.refuse_implicit(&mut tables, stream)?;
                Ok(false)
            }
            (Some(id), None) => {
                let never_recorded = self.engine.lock().events.get(&event).is_none_or(|event| event.recorded.is_none());
                if never_recorded {
                    return Ok(true);
                }
                tables.captures.valid(id)?.valid = false;
                Err(CUresult::STREAM_CAPTURE_ISOLATION)
            }
            (_, Some((id, _))) if !tables.captures.captures.contains_key(&id) => Err(CUresult::CAPTURED_EVENT),
            (Some(own), Some((id, _))) if own != id => {
                for id in [own, id] {
                    tables.captures.valid(id)?.valid = false;
                }
                Err(CUresult::STREAM_CAPTURE_MERGE)
            }
            (_, Some((id, nodes))) => {
                self.refuse_implicit(&mut tables, stream)?;
                let capture = tables.captures.valid(id)?;
                let ends = capture.ends.entry(stream).or_default();
                ends.extend(nodes);
                ends.sort_unstable();
                ends.dedup();
                tables.captures.of_stream.insert(stream, id);
                Ok(true)
            }
        }
    }

    fn node_place(&self, stream: u64) -> (u64, u64) {
        let mut world = self.engine.lock();
        let context = world.streams.get(&stream).map_or(0, |stream| stream.context);
        (world.new_handle(), context)
    }

    /// `cuStreamBeginCapture`.
    pub fn begin_capture(&self, handle: u64, mode: CaptureMode) -> Outcome {
        let (stream, _) = self.stream(handle)?;
        if self.engine.lock().streams.get(&stream).is_some_and(|stream| stream.legacy) {
            return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.tables().captures.of_stream.contains_key(&stream) {
            return Err(CUresult::ILLEGAL_STATE);
        }
        let graph = self.graph_create()?;
        let mut tables = self.tables();
        tables.captures.next += 1;
        let id = tables.captures.next;
        let capture = Capture {
            graph,
            origin: stream,
            mode,
            thread: std::thread::current().id(),
            valid: true,
            ends: HashMap::from([(stream, Vec::new())]),
        };
        tables.captures.captures.insert(id, capture);
        tables.captures.of_stream.insert(stream, id);
        Ok(())
    }

    /// `cuStreamEndCapture`: the graph.
    pub fn end_capture(&self, handle: u64) -> Outcome<u64> {
        let (stream, _) = self.stream(handle)?;
        let mut tables = self.tables();
        let id = tables.captures.of_stream.get(&stream).copied().ok_or(CUresult::ILLEGAL_STATE)?;
        let capture = tables.captures.captures.get(&id).ok_or(CUresult::ILLEGAL_STATE)?;
        let graph = capture.graph;
        if capture.origin != stream {
            // The capture is lost, and ends when its first stream ends it.
            tables.captures.valid(id)?.valid = false;
            return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(CUresult::STREAM_CAPTURE_WRONG_THREAD);
        }
        let outcome = if capture.valid { tables.check_joined(id) } else { Err(CUresult::STREAM_CAPTURE_INVALIDATED) };
        tables.captures.end(id);
        drop(tables);
        match outcome {
            Ok(()) => Ok(graph),
            Err(error) => {
                self.graph_destroy(graph)?;
                Err(error)
            }
        }
    }

    /// `cuStreamIsCapturing`: 0, 1, or 2 for a capture that is lost.
    pub fn is_capturing(&self, handle: u64) -> Outcome<i32> {
        self.capture_info(handle).map(|info| info.status)
    }

    /// `cuStreamGetCaptureInfo`.
    pub fn capture_info(&self, handle: u64) -> Outcome<CaptureInfo> {
        let (stream, _) = self.stream(handle)?;
        let mut tables = self.tables();
        let Some(id) = tables.captures.of_stream.get(&stream).copied() else {
            self.refuse_implicit(&mut tables, stream)?;
            return Ok(CaptureInfo::default());
        };
        let capture = tables.captures.captures.get(&id).ok_or(CUresult::ILLEGAL_STATE)?;
        let nodes = tables.graphs.get(&capture.graph).map(|graph| graph.nodes.as_slice()).unwrap_or_default();
        let ends = capture.ends.get(&stream).map(Vec::as_slice).unwrap_or_default();
        Ok(CaptureInfo {
            status: if capture.valid { 1 } else { 2 },
            id,
            graph: capture.graph,
            dependencies: ends.iter().filter_map(|end| nodes.get(*end)).map(|node| node.handle).collect(),
        })
    }

    /// `cuStreamUpdateCaptureDependencies`: adds to (or replaces) what the stream's next node depends on.
    pub fn update_capture_dependencies(&self, handle: u64, nodes: &[u64], replace: bool) -> Outcome {
        let (stream, _) = self.stream(handle)?;
        let mut tables = self.tables();
        let id = tables.captures.of_stream.get(&stream).copied().ok_or(CUresult::ILLEGAL_STATE)?;
        let graph = tables.captures.valid(id)?.graph;
        let graph = tables.graphs.get(&graph).ok_or(CUresult::ILLEGAL_STATE)?;
        let place = |handle: &u64| graph.nodes.iter().position(|node| node.handle == *handle);
        let places: Option<Vec<usize>> = nodes.iter().map(place).collect();
        let places = places.ok_or(CUresult::INVALID_VALUE)?;
        let ends = tables.captures.valid(id)?.ends.entry(stream).or_default();
        if replace {
            ends.clear();
        }
        ends.extend(places);
        ends.sort_unstable();
        ends.dedup();
        Ok(())
    }
}

impl Captures {
    fn valid(&mut self, id: u64) -> Outcome<&mut Capture> {
        let capture = self.captures.get_mut(&id).ok_or(CUresult::ILLEGAL_STATE)?;
        if capture.valid { Ok(capture) } else { Err(CUresult::STREAM_CAPTURE_INVALIDATED) }
    }

    fn end(&mut self, id: u64) {
        self.captures.remove(&id);
        self.of_stream.retain(|_, capture| *capture != id);
    }
}

impl Tables {
    /// Adds a node behind a stream's last ones; it becomes the stream's last.
    pub(super) fn add_node(&mut self, id: u64, stream: u64, node: Node) -> Outcome {
        let capture = self.captures.valid(id)?;
        let graph = self.graphs.get_mut(&capture.graph).ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
        let ends = capture.ends.entry(stream).or_default();
        graph.nodes.push(Node { after: std::mem::take(ends), ..node });
        ends.push(graph.nodes.len() - 1);
        Ok(())
    }

    /// Adds the nodes of a graph behind a stream's last ones.
    pub(super) fn add_child(
        &mut self,
        id: u64,
        stream: u64,
        child: &[Node],
        mut handle: impl FnMut() -> u64,
    ) -> Outcome {
        let capture = self.captures.valid(id)?;
        let graph = self.graphs.get_mut(&capture.graph).ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
        let before = capture.ends.entry(stream).or_default();
        let first = graph.nodes.len();
        for node in child {
            let after =
                if node.after.is_empty() { before.clone() } else { node.after.iter().map(|at| at + first).collect() };
            graph.nodes.push(Node { handle: handle(), after, ..node.clone() });
        }
        if !child.is_empty() {
            *before = Graph::leaves(child).into_iter().map(|at| at + first).collect();
        }
        Ok(())
    }

    pub(super) fn capture_of(&self, stream: u64) -> Option<u64> {
        self.captures.of_stream.get(&stream).copied()
    }

    /// Every node must lead to the last nodes of the stream that began the capture.
    fn check_joined(&self, id: u64) -> Outcome {
        let capture = self.captures.captures.get(&id).ok_or(CUresult::ILLEGAL_STATE)?;
        let nodes = self.graphs.get(&capture.graph).map(|graph| graph.nodes.as_slice()).unwrap_or_default();
        let mut joined = vec![false; nodes.len()];
        let mut open = capture.ends.get(&capture.origin).cloned().unwrap_or_default();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut joined[at], true) {
                open.extend(&nodes[at].after);
            }
        }
        if joined.iter().all(|joined| *joined) { Ok(()) } else { Err(CUresult::STREAM_CAPTURE_UNJOINED) }
    }
}
