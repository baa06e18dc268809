//! Graphs: made by capture, instantiated, launched as often as one likes; user objects that live as long as a graph.

use std::collections::HashMap;

use super::{CUresult, Driver, Outcome};
use crate::schedule::{Reason, Recorded, Work, World};
use crate::space::state::{Kind, Record, RecordId};

/// A graph.
#[derive(Debug)]
pub(super) struct Graph {
    /// In an order in which all stand behind what they depend on.
    pub(super) nodes: Vec<Node>,
    /// User objects, and how often it holds each.
    objects: HashMap<u64, u32>,
    record: RecordId,
}

/// A node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) handle: u64,
    /// The context of the stream that it was captured in.
    pub(super) context: u64,
    pub(super) work: NodeWork,
    /// The nodes that it depends on, by place.
    pub(super) after: Vec<usize>,
}

/// What a node does.
#[derive(Debug, Clone)]
pub(super) enum NodeWork {
    /// Work as in a stream.
    Work(Work),
    /// A wait for the latest record of an event at the time of the launch.
    Wait {
        /// The event.
        event: u64,
    },
}

/// An executable graph.
#[derive(Debug)]
pub(super) struct Exec {
    nodes: Vec<Node>,
    objects: HashMap<u64, u32>,
    record: RecordId,
    /// The end of its last launch: launches of one executable graph come one after the other.
    last: u64,
}

/// A user object.
#[derive(Debug)]
pub(super) struct UserObject {
    pointer: usize,
    destroy: usize,
    references: u32,
    record: RecordId,
}

/// `CUgraphExecUpdateResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateResult {
    /// Updated.
    Success = 0,
    /// Nodes or their dependencies differ.
    TopologyChanged = 2,
    /// A node is of another type.
    NodeTypeChanged = 3,
}

impl Graph {
    /// Nodes that no other depends on.
    pub(super) fn leaves(nodes: &[Node]) -> Vec<usize> {
        let mut is_leaf = vec![true; nodes.len()];
        for node in nodes {
            for before in &node.after {
                is_leaf[*before] = false;
            }
        }
        (0..nodes.len()).filter(|at| is_leaf[*at]).collect()
    }

    /// For each node the line it runs in, as a hardware queue beside the stream's: a chain stays in one.
    fn branches(nodes: &[Node]) -> Vec<usize> {
        let mut ends: Vec<usize> = Vec::new();
        let mut branches = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let line = node.after.iter().find_map(|before| ends.iter().position(|end| end == before));
            let line = line.unwrap_or_else(|| {
                ends.push(at);
                ends.len() - 1
            });
            ends[line] = at;
            branches.push(line);
        }
        branches
    }
}

impl NodeWork {
    /// `CUgraphNodeType`.
    fn kind(&self) -> i32 {
        match self {
            NodeWork::Work(Work::Kernel(_)) => 0,
            NodeWork::Work(Work::Copy(_)) => 1,
            NodeWork::Work(Work::Fill { .. }) => 2,
            NodeWork::Work(Work::Host { .. }) => 3,
            NodeWork::Work(Work::Mark | Work::PoolFree { .. }) => 5,
            NodeWork::Wait { .. } => 6,
            NodeWork::Work(Work::Record { .. }) => 7,
            NodeWork::Work(Work::Memops { .. }) => 12,
        }
    }
}

impl Driver {
    /// `cuGraphCreate`.
    pub fn graph_create(&self) -> Outcome<u64> {
        let state = self.space.state();
        let record = self.space.record(Record::new(Kind::Graph, state.pid(), state.next_id()))?;
        let handle = self.engine.lock().new_handle();
        self.tables().graphs.insert(handle, Graph { nodes: Vec::new(), objects: HashMap::new(), record });
        Ok(handle)
    }

    /// `cuGraphDestroy`.
    pub fn graph_destroy(&self, handle: u64) -> Outcome {
        let graph = self.tables().graphs.remove(&handle).ok_or(CUresult::INVALID_VALUE)?;
        self.space.state().lock().remove(graph.record);
        self.release_all(&graph.objects);
        Ok(())
    }

    /// `cuGraphGetNodes`: the handles of all nodes.
    pub fn graph_nodes(&self, handle: u64) -> Outcome<Vec<u64>> {
        let tables = self.tables();
        let graph = tables.graphs.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        Ok(graph.nodes.iter().map(|node| node.handle).collect())
    }

    /// `cuGraphNodeGetType`: the type of a node of any graph.
    pub fn node_kind(&self, node: u64) -> Outcome<i32> {
        let tables = self.tables();
        let mut nodes = tables.graphs.values().flat_map(|graph| &graph.nodes);
        nodes.find(|other| other.handle == node).map(|node| node.work.kind()).ok_or(CUresult::INVALID_VALUE)
    }

    /// `cuGraphInstantiate`: flags other than 0 are not supported here (auto-free, upload, device launch, node priority).
    pub fn graph_instantiate(&self, handle: u64, flags: u64) -> Outcome<u64> {
        // The real driver refuses it during another thread's global capture, and invalidates that capture (13.0 on an H200).
        self.guard_capture()?;
        if flags & !0xF != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        if flags & 4 != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let state = self.space.state();
        let record = self.space.record(Record::new(Kind::GraphExec, state.pid(), state.next_id()))?;
        let exec_handle = self.engine.lock().new_handle();
        let mut tables = self.tables();
        let graph = tables.graphs.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        let exec = Exec { nodes: graph.nodes.clone(), objects: graph.objects.clone(), record, last: 0 };
        for (object, count) in exec.objects.clone() {
            if let Some(object) = tables.user_objects.get_mut(&object) {
                object.references += count;
            }
        }
        tables.execs.insert(exec_handle, exec);
        Ok(exec_handle)
    }

    /// `cuGraphExecDestroy`: what was launched goes on; its user objects are released when that is done.
    pub fn exec_destroy(&'static self, handle: u64) -> Outcome {
        let exec = self.tables().execs.remove(&handle).ok_or(CUresult::INVALID_VALUE)?;
        self.space.state().lock().remove(exec.record);
        if exec.objects.is_empty() {
            return Ok(());
        }
        if self.engine.lock().is_done(exec.last) {
            self.release_all(&exec.objects);
            return Ok(());
        }
        let context = exec.nodes.first().map_or(0, |node| node.context);
        let thread = std::thread::Builder::new().name("vcuda-release".to_owned());
        let spawned = thread.spawn(move || {
            // The work is over, well or not: either way nobody uses the objects any more.
            let _ = self.engine.wait_for(context, vec![exec.last], Reason::Asked);
            self.release_all(&exec.objects);
        });
        spawned.map(|_| ()).map_err(|_| CUresult::OPERATING_SYSTEM)
    }

    /// `cuGraphUpload`: nothing is to be done ahead here.
    pub fn graph_upload(&self, handle: u64, stream: u64) -> Outcome {
        self.stream(stream)?;
        if self.tables().execs.contains_key(&handle) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// `cuGraphLaunch`: into a capturing stream the nodes are copied.
    pub fn graph_launch(&self, handle: u64, stream: u64) -> Outcome {
        let (stream, current) = self.stream(stream)?;
        self.function_context_check(handle)?;
        let mut tables = self.tables();
        let nodes = tables.execs.get(&handle).map(|exec| exec.nodes.clone()).ok_or(CUresult::INVALID_VALUE)?;
        if let Some(id) = tables.capture_of(stream) {
            let mut world = self.engine.lock();
            return tables.add_child(id, stream, &nodes, || world.new_handle());
        }
        drop(tables);
        // The legacy stream may be in the way of a capture.
        self.refuse_capturing(stream)?;
        let last = self.tables().execs.get(&handle).map_or(0, |exec| exec.last);
        let mut world = self.engine.lock();
        let end = submit_nodes(&mut world, stream, current.context, &nodes, last);
        self.engine.kick(&mut world);
        drop(world);
        let end = end?;
        if let Some(exec) = self.tables().execs.get_mut(&handle) {
            exec.last = end;
        }
        Ok(())
    }

    /// All contexts of an executable graph must still be usable.
    fn function_context_check(&self, handle: u64) -> Outcome {
        let contexts: Vec<u64> = {
            let tables = self.tables();
            let exec = tables.execs.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
            exec.nodes.iter().map(|node| node.context).collect()
        };
        let world = self.engine.lock();
        contexts.into_iter().try_for_each(|context| self.usable(&world, context).map(|_| ()))
    }

    /// `cuGraphExecUpdate`: takes over the graph's parameters if its shape is the same.
    pub fn exec_update(&self, handle: u64, graph: u64) -> Outcome<UpdateResult> {
        let mut tables = self.tables();
        let nodes = tables.graphs.get(&graph).map(|graph| graph.nodes.clone()).ok_or(CUresult::INVALID_VALUE)?;
        let exec = tables.execs.get_mut(&handle).ok_or(CUresult::INVALID_VALUE)?;
        let same_shape =
            exec.nodes.len() == nodes.len() && exec.nodes.iter().zip(&nodes).all(|(old, new)| old.after == new.after);
        if !same_shape {
            return Ok(UpdateResult::TopologyChanged);
        }
        if exec.nodes.iter().zip(&nodes).any(|(old, new)| old.work.kind() != new.work.kind()) {
            return Ok(UpdateResult::NodeTypeChanged);
        }
        exec.nodes = nodes;
        Ok(UpdateResult::Success)
    }

    /// `cuUserObjectCreate`.
    pub fn user_object_create(&self, pointer: usize, destroy: usize, references: u32, flags: u32) -> Outcome<u64> {
        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC is the only flag, and it must be given.
        if destroy == 0 || references == 0 || references > i32::MAX.unsigned_abs() || flags != 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        let state = self.space.state();
        let record = self.space.record(Record::new(Kind::UserObject, state.pid(), state.next_id()))?;
        let handle = self.engine.lock().new_handle();
        self.tables().user_objects.insert(handle, UserObject { pointer, destroy, references, record });
        Ok(handle)
    }

    /// `cuUserObjectRetain`.
    pub fn user_object_retain(&self, handle: u64, count: u32) -> Outcome {
        let mut tables = self.tables();
        let object = tables.user_objects.get_mut(&handle).filter(|_| count > 0).ok_or(CUresult::INVALID_VALUE)?;
        object.references += count;
        Ok(())
    }

    /// `cuUserObjectRelease`: with the last reference the program's function is called.
    pub fn user_object_release(&self, handle: u64, count: u32) -> Outcome {
        let mut tables = self.tables();
        let object = tables.user_objects.get_mut(&handle).ok_or(CUresult::INVALID_VALUE)?;
        if count == 0 || count > object.references {
            return Err(CUresult::INVALID_VALUE);
        }
        object.references -= count;
        if object.references > 0 {
            return Ok(());
        }
        let object = tables.user_objects.remove(&handle).ok_or(CUresult::INVALID_VALUE)?;
        drop(tables);
        self.space.state().lock().remove(object.record);
        call(object.destroy, object.pointer);
        Ok(())
    }

    /// `cuGraphRetainUserObject`: flag 1 moves the caller's references.
    pub fn graph_retain_object(&self, graph: u64, object: u64, count: u32, flags: u32) -> Outcome {
        if flags > 1 || count == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut guard = self.tables();
        let tables = &mut *guard;
        let graph = tables.graphs.get_mut(&graph).ok_or(CUresult::INVALID_VALUE)?;
        let entry = tables.user_objects.get_mut(&object).ok_or(CUresult::INVALID_VALUE)?;
        if flags == 0 {
            entry.references += count;
        }
        *graph.objects.entry(object).or_default() += count;
        Ok(())
    }

    /// `cuGraphReleaseUserObject`.
    pub fn graph_release_object(&self, graph: u64, object: u64, count: u32) -> Outcome {
        let mut tables = self.tables();
        let graph = tables.graphs.get_mut(&graph).ok_or(CUresult::INVALID_VALUE)?;
        let held = graph.objects.get_mut(&object).filter(|held| count > 0 && **held >= count);
        let held = held.ok_or(CUresult::INVALID_VALUE)?;
        *held -= count;
        if *held == 0 {
            graph.objects.remove(&object);
        }
        drop(tables);
        self.user_object_release(object, count)
    }

    fn release_all(&self, objects: &HashMap<u64, u32>) {
        for (object, count) in objects {
            // The graph held these references, so they can be given back.
            let _ = self.user_object_release(*object, *count);
        }
    }
}

fn call(function: usize, data: usize) {
    crate::schedule::call_host_function(function, data);
}

/// Adds the nodes between two marks of the stream; gives back the second.
fn submit_nodes(world: &mut World, stream: u64, context: u64, nodes: &[Node], last: u64) -> Outcome<u64> {
    let start = world.submit(stream, Work::Mark, &[last], None)?;
    let branches = Graph::branches(nodes);
    let mut placed: Vec<u64> = Vec::with_capacity(nodes.len());
    for (node, branch) in nodes.iter().zip(branches) {
        let mut after: Vec<u64> = node.after.iter().map(|at| placed[*at]).collect();
        after.push(start);
        // Work captured in another context's stream runs in that context.
        let line = match world.contexts.get(&node.context) {
            Some(other) if node.context != context => other.null_stream,
            _ => stream,
        };
        let work = match &node.work {
            NodeWork::Work(work) => work.clone(),
            NodeWork::Wait { event } => {
                after.extend(
                    world.events.get(event).and_then(|event| event.recorded).map(|recorded| recorded.operation),
                );
                Work::Mark
            }
        };
        let recorded = if let Work::Record { event } = work { Some(event) } else { None };
        let operation = world.submit(line, work, &after, Some(branch))?;
        if let Some(event) = recorded.and_then(|event| world.events.get_mut(&event)) {
            event.recorded = Some(Recorded { operation, at: None });
        }
        placed.push(operation);
    }
    let leaves: Vec<u64> = Graph::leaves(nodes).into_iter().map(|at| placed[at]).collect();
    world.submit(stream, Work::Mark, &leaves, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(after: &[usize]) -> Node {
        Node { handle: 0, context: 0, work: NodeWork::Work(Work::Mark), after: after.to_vec() }
    }

    #[test]
    fn a_chain_stays_in_one_line_and_branches_leave_it() {
        let nodes = [node(&[]), node(&[0]), node(&[0]), node(&[2]), node(&[1, 3])];
        assert_eq!(Graph::branches(&nodes), [0, 0, 1, 1, 0]);
        assert_eq!(Graph::leaves(&nodes), [4]);
    }
}
