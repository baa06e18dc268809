//! Capture, graphs, user objects.

use std::cell::RefCell;

use vcuda::driver::{self, CUresult, CaptureInfo, CaptureMode, Outcome, UpdateResult};

use crate::entry::{Address, In, Out, entries};

/// `CUgraphExecUpdateResultInfo`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct UpdateInfo {
    result: i32,
    node: u64,
    from: u64,
}

thread_local! {
    /// The dependencies that this thread was told last: the caller reads them until its next call.
    static DEPENDENCIES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

entries! {
    cuStreamBeginCapture_v2(10010) (stream: u64, mode: i32) {
        let mode = CaptureMode::from_number(mode).ok_or(CUresult::INVALID_VALUE)?;
        driver::get()?.begin_capture(stream, mode)
    }

    cuStreamEndCapture(10000) (stream: u64, graph: Out<u64>) {
        graph.check()?;
        graph.put(0)?;
        graph.put(driver::get()?.end_capture(stream)?)
    }

    cuStreamIsCapturing(10000) (stream: u64, status: Out<i32>) {
        status.check()?;
        status.put(driver::get()?.is_capturing(stream)?)
    }

    cuStreamGetCaptureInfo_v2(11030)
    (stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<*const u64>, count: Out<u64>) {
        put_info(&driver::get()?.capture_info(stream)?, status, (id, graph), (dependencies, count))
    }

    cuStreamGetCaptureInfo_v3(12030)
    (
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<*const u64>,
        edges: Out<*const u64>, count: Out<u64>,
    ) {
        edges.put_if(std::ptr::null());
        put_info(&driver::get()?.capture_info(stream)?, status, (id, graph), (dependencies, count))
    }

    cuStreamUpdateCaptureDependencies(11030) (stream: u64, nodes: In<u64>, count: u64, flags: u32) {
        update(stream, nodes, count, flags)
    }

    cuStreamUpdateCaptureDependencies_v2(12030) (stream: u64, nodes: In<u64>, edges: In<u64>, count: u64, flags: u32) {
        if !edges.is_null() {
            // Edges with data belong to programmatic launches, which are not here.
            return Err(CUresult::NOT_SUPPORTED);
        }
        update(stream, nodes, count, flags)
    }

    cuThreadExchangeStreamCaptureMode(10010) (mode: Out<i32>) {
        mode.check()?;
        let wanted = CaptureMode::from_number(mode.as_in().get()?).ok_or(CUresult::INVALID_VALUE)?;
        mode.put(driver::exchange_mode(wanted).number())
    }

    cuGraphCreate(10000) (graph: Out<u64>, flags: u32) {
        graph.check()?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        graph.put(driver::get()?.graph_create()?)
    }

    cuGraphDestroy(10000) (graph: u64) { driver::get()?.graph_destroy(graph) }

    cuGraphGetNodes(10000) (graph: u64, nodes: Out<u64>, count: Out<u64>) {
        count.check()?;
        let found = driver::get()?.graph_nodes(graph)?;
        let all = found.len() as u64;
        if nodes.is_null() {
            return count.put(all);
        }
        let room = count.as_in().get()?;
        nodes.put_all(found.into_iter().chain(std::iter::repeat(0)).take(usize::try_from(room).unwrap_or(0)))?;
        count.put(all.min(room))
    }

    cuGraphNodeGetType(10000) (node: u64, kind: Out<i32>) {
        kind.check()?;
        kind.put(driver::get()?.node_kind(node)?)
    }

    cuGraphInstantiateWithFlags(11040) (exec: Out<u64>, graph: u64, flags: u64) {
        exec.check()?;
        exec.put(driver::get()?.graph_instantiate(graph, flags)?)
    }

    cuGraphLaunch(10000) (exec: u64, stream: u64) { driver::get()?.graph_launch(exec, stream) }

    cuGraphUpload(11010) (exec: u64, stream: u64) { driver::get()?.graph_upload(exec, stream) }

    cuGraphExecDestroy(10000) (exec: u64) { driver::get()?.exec_destroy(exec) }

    cuGraphExecUpdate_v2(12000) (exec: u64, graph: u64, info: Out<UpdateInfo>) {
        info.check()?;
        let result = driver::get()?.exec_update(exec, graph)?;
        info.put(UpdateInfo { result: result as i32, node: 0, from: 0 })?;
        if result == UpdateResult::Success { Ok(()) } else { Err(CUresult::GRAPH_EXEC_UPDATE_FAILURE) }
    }

    cuUserObjectCreate(11030) (object: Out<u64>, data: Address, destroy: Address, references: u32, flags: u32) {
        object.check()?;
        object.put(driver::get()?.user_object_create(data.0, destroy.0, references, flags)?)
    }

    cuUserObjectRetain(11030) (object: u64, count: u32) { driver::get()?.user_object_retain(object, count) }

    cuUserObjectRelease(11030) (object: u64, count: u32) { driver::get()?.user_object_release(object, count) }

    cuGraphRetainUserObject(11030) (graph: u64, object: u64, count: u32, flags: u32) {
        driver::get()?.graph_retain_object(graph, object, count, flags)
    }

    cuGraphReleaseUserObject(11030) (graph: u64, object: u64, count: u32) {
        driver::get()?.graph_release_object(graph, object, count)
    }
}

fn put_info(
    info: &CaptureInfo,
    status: Out<i32>,
    (id, graph): (Out<u64>, Out<u64>),
    (dependencies, count): (Out<*const u64>, Out<u64>),
) -> Outcome {
    status.put(info.status)?;
    if info.status != 1 {
        return Ok(());
    }
    id.put_if(info.id);
    graph.put_if(info.graph);
    count.put_if(info.dependencies.len() as u64);
    DEPENDENCIES.with_borrow_mut(|kept| {
        kept.clone_from(&info.dependencies);
        dependencies.put_if(kept.as_ptr());
    });
    Ok(())
}

fn update(stream: u64, nodes: In<u64>, count: u64, flags: u32) -> Outcome {
    let count = usize::try_from(count).map_err(|_| CUresult::INVALID_VALUE)?;
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    driver::get()?.update_capture_dependencies(stream, &nodes.get_all(count)?, flags == 1)
}
