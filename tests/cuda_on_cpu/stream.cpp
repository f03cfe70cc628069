/*
 * stream.cpp - the emulated driver's streams, events and graphs. A stream is a thread that works
 * off a queue. While it captures, work goes into a graph, with the arguments of that moment; a
 * graph's launch puts all of it into the queue of a stream again. Captures of one stream only:
 * events in them, or another stream that joins in, are refused.
 */
#include "tests/cuda_on_cpu/driver.h"

namespace cuda_on_cpu
{
namespace
{
void run_stream(cu_stream stream)
{
    locked lock(state().lock);
    for (;;) {
        state().changed.wait(lock, [=] { return !stream->queue.empty() || stream->closing; });
        if (stream->queue.empty())
            return;
        work next = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        if (next.kind == WORK_ORDER || !stream->gpu->failure) {
            lock.unlock();
            next.run();
            lock.lock();
        }
        stream->busy = false;
        state().changed.notify_all();
    }
}

bool is_idle(cu_stream stream)
{
    return stream->queue.empty() && !stream->busy;
}

cu_result check_order(cu_stream stream, cu_event event)
{
    if (cu_result result = check_stream(stream))
        return result;
    if (!event)
        return INVALID_HANDLE;
    if (stream->capture) {
        stream->capture_broken = true;
        return CAPTURE_UNSUPPORTED;
    }
    return OK;
}
} // namespace

driver_state &state()
{
    static driver_state *the_state = new driver_state();
    return *the_state;
}

cu_result check_stream(cu_stream stream)
{
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    return stream && stream->gpu == gpu ? OK : INVALID_HANDLE;
}

bool breaks_capture(cu_context gpu)
{
    for (cu_stream stream : gpu->streams)
        if (stream->capture && stream->capturer == std::this_thread::get_id()) {
            stream->capture_broken = true;
            return true;
        }
    return false;
}

void enqueue(cu_stream stream, work what)
{
    stream->after_launch = what.kind == WORK_LAUNCH;
    if (stream->capture) {
        stream->capture->works.push_back(std::move(what));
        return;
    }
    cu_context gpu = stream->gpu;
    if (what.kind == WORK_LAUNCH && ++gpu->launches == gpu->bad_launch)
        what.run = [=] {
            locked lock(state().lock);
            gpu->failure = ILLEGAL_ADDRESS;
        };
    if (what.kind == WORK_LAUNCH && gpu->launches == gpu->hanging_launch)
        what.run = [] {
            while (failure_asked_for("hang="))
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
    stream->queue.push_back(std::move(what));
    state().changed.notify_all();
}

void wait_until_idle(cu_context gpu, locked &lock)
{
    state().changed.wait(lock, [=] {
        for (cu_stream stream : gpu->streams)
            if (!is_idle(stream))
                return false;
        return true;
    });
}
} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

/* ---------------------------------------------------------------------------- streams -------- */

cu_result on_cpu_stream_create(cu_stream *stream, unsigned flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING))
        return INVALID_VALUE;
    cu_stream made = new CUstream_st{};
    made->gpu = gpu;
    gpu->streams.insert(made);
    made->worker = std::thread(run_stream, made);
    *stream = made;
    return OK;
}

cu_result on_cpu_stream_destroy(cu_stream stream)
{
    if (!stream)
        return INVALID_HANDLE;
    {
        locked lock(state().lock);
        stream->closing = true;
        state().changed.notify_all();
    }
    stream->worker.join();
    locked lock(state().lock);
    cu_context gpu = stream->gpu;
    gpu->streams.erase(stream);
    delete stream->capture;
    delete stream;
    return gpu->failure;
}

/* Of what asks for work to be done: a capture that it comes to is broken. The lock is held. */
static cu_result check_not_capturing(cu_stream stream)
{
    if (cu_result result = check_stream(stream))
        return result;
    if (!stream->capture)
        return OK;
    stream->capture_broken = true;
    return CAPTURE_UNSUPPORTED;
}

cu_result on_cpu_stream_synchronize(cu_stream stream)
{
    locked lock(state().lock);
    if (cu_result result = check_not_capturing(stream))
        return result;
    state().changed.wait(lock, [=] { return is_idle(stream); });
    return stream->gpu->failure;
}

/* Who asks looks again at once, and would take a core that the emulated GPU needs: until something
 * changes, but not for long, it is kept here. */
static cu_result not_ready(locked &lock)
{
    state().changed.wait_for(lock, std::chrono::milliseconds(1));
    return NOT_READY;
}

cu_result on_cpu_stream_query(cu_stream stream)
{
    locked lock(state().lock);
    if (cu_result result = check_not_capturing(stream))
        return result;
    return is_idle(stream) ? OK : not_ready(lock);
}

cu_result on_cpu_host_call(cu_stream stream, cu_host_function run, void *user)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (!run)
        return INVALID_VALUE;
    enqueue(stream, {WORK, [=] { run(user); }});
    return OK;
}

/* ----------------------------------------------------------------------------- events -------- */

cu_result on_cpu_event_create(cu_event *event, unsigned flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (flags & ~static_cast<unsigned>(CU_EVENT_DISABLE_TIMING | 1)) /* 1: waits do not spin */
        return INVALID_VALUE;
    *event = new CUevent_st{gpu, !(flags & CU_EVENT_DISABLE_TIMING), nullptr};
    return OK;
}

cu_result on_cpu_event_destroy(cu_event event)
{
    locked lock(state().lock);
    if (!event)
        return INVALID_HANDLE;
    delete event;
    return OK;
}

cu_result on_cpu_event_record(cu_event event, cu_stream stream)
{
    locked lock(state().lock);
    if (cu_result result = check_order(stream, event))
        return result;
    auto recorded = std::make_shared<mark>();
    event->latest = recorded;
    enqueue(stream, {WORK_ORDER, [=] {
                         locked again(state().lock);
                         recorded->done = true;
                         recorded->when = std::chrono::steady_clock::now();
                     }});
    return OK;
}

cu_result on_cpu_event_query(cu_event event)
{
    locked lock(state().lock);
    if (!event)
        return INVALID_HANDLE;
    if (event->gpu->failure)
        return event->gpu->failure;
    return !event->latest || event->latest->done ? OK : not_ready(lock);
}

cu_result on_cpu_event_elapsed(float *ms, cu_event begin, cu_event end)
{
    locked lock(state().lock);
    if (!begin || !end || !begin->timed || !end->timed || !begin->latest || !end->latest)
        return INVALID_HANDLE;
    if (begin->gpu->failure)
        return begin->gpu->failure;
    if (!begin->latest->done || !end->latest->done)
        return NOT_READY;
    *ms = std::chrono::duration<float, std::milli>(end->latest->when - begin->latest->when).count();
    return OK;
}

cu_result on_cpu_stream_wait(cu_stream stream, cu_event event, unsigned flags)
{
    locked lock(state().lock);
    if (cu_result result = check_order(stream, event))
        return result;
    if (flags)
        return INVALID_VALUE;
    auto awaited = event->latest;
    if (!awaited)
        return OK;
    enqueue(stream, {WORK_ORDER, [=] {
                         locked again(state().lock);
                         state().changed.wait(again, [=] { return awaited->done; });
                     }});
    return OK;
}

/* ----------------------------------------------------------------------------- graphs -------- */

cu_result on_cpu_capture_begin(cu_stream stream, int mode)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (mode < 0 || mode > 2)
        return INVALID_VALUE;
    if (stream->capture)
        return ILLEGAL_STATE;
    stream->capture = new CUgraph_st{};
    stream->after_launch = false;
    stream->capture_broken = false;
    stream->capturer = std::this_thread::get_id();
    return OK;
}

cu_result on_cpu_capture_end(cu_stream stream, cu_graph *graph)
{
    locked lock(state().lock);
    *graph = nullptr;
    if (cu_result result = check_stream(stream))
        return result;
    if (!stream->capture)
        return ILLEGAL_STATE;
    if (stream->capturer != std::this_thread::get_id())
        return CAPTURE_WRONG_THREAD;
    if (stream->capture_broken)
        delete stream->capture;
    else
        *graph = stream->capture;
    stream->capture = nullptr;
    stream->after_launch = false;
    return *graph ? OK : CAPTURE_INVALIDATED;
}

cu_result on_cpu_graph_instantiate(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (!graph || flags)
        return INVALID_VALUE;
    *exec = new CUgraphExec_st{gpu, graph->works};
    return OK;
}

cu_result on_cpu_graph_launch(cu_graph_exec exec, cu_stream stream)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (!exec || exec->gpu != stream->gpu)
        return INVALID_HANDLE;
    for (const work &each : exec->works)
        enqueue(stream, each);
    stream->after_launch = false;
    return OK;
}

cu_result on_cpu_graph_exec_destroy(cu_graph_exec exec)
{
    delete exec;
    return exec ? OK : INVALID_VALUE;
}

cu_result on_cpu_graph_destroy(cu_graph graph)
{
    delete graph;
    return graph ? OK : INVALID_VALUE;
}
