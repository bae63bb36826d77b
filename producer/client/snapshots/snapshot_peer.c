#include "producer/client/snapshots/snapshot_peer.h"

#include <errno.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "producer/client/fork.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

void evq_snapshot_peer_begin(struct evq_snapshot_peer *peer, int fd)
{
    *peer = (struct evq_snapshot_peer){
        .fd = fd, .file = -1, .deadline_ms = evq_clock_mono_ms() + EVQ_SNAPSHOT_PEER_REQUEST_MS};
    (void)!evq_fork_watch(fd, NULL); // If it fails, a forked child may keep it open.
}

void evq_snapshot_peer_end(struct evq_snapshot_peer *peer)
{
    if (peer->fd >= 0) {
        evq_fork_forget(peer->fd);
        (void)shutdown(peer->fd, SHUT_RDWR); // Also if a forked child has it open.
        (void)close(peer->fd);
    }
    evq_file_close(&peer->file);
    peer->fd = peer->file = -1;
}

static bool peer_sends(const struct evq_snapshot_peer *peer)
{
    return peer->file >= 0 || peer->answered;
}

bool evq_snapshot_peer_silent(const struct evq_snapshot_peer *peer)
{
    return peer->fd >= 0 && !peer_sends(peer);
}

short evq_snapshot_peer_events(const struct evq_snapshot_peer *peer)
{
    return peer_sends(peer) ? POLLOUT : POLLIN;
}

/* Nothing can be moved now; a later step may. */
static bool later(ssize_t moved)
{
    return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static void answer(struct evq_snapshot_peer *peer, evq_snapshot_find_fn find, void *context,
                   const struct evq_snapshot_request *request)
{
    struct evq_snapshot_reply reply = {.word = EVQ_SNAPSHOT_GONE};

    peer->file = find(context, request, &reply.bytes);
    if (peer->file >= 0 && request->offset <= reply.bytes) {
        reply.word = EVQ_SNAPSHOT_OK;
        peer->at = request->offset;
        peer->end = reply.bytes;
    } else {
        peer->answered = true;
    }
    peer->mark = peer->at;
    peer->line_bytes = evq_snapshot_reply_format(&reply, peer->line);
    peer->deadline_ms = evq_clock_mono_ms() + EVQ_SNAPSHOT_PEER_BLOCK_MS;
}

static bool request_read(struct evq_snapshot_peer *peer, evq_snapshot_find_fn find, void *context)
{
    struct evq_snapshot_request request;

    const ssize_t got = recv(peer->fd, peer->line + peer->line_bytes,
                             EVQ_SNAPSHOT_LINE_BYTES_MAX - peer->line_bytes, MSG_DONTWAIT);
    if (got <= 0) {
        return later(got);
    }
    peer->line_bytes += (size_t)got;
    switch (evq_snapshot_request_parse(peer->line, peer->line_bytes, &request, NULL)) {
    case EVQ_OK:
        answer(peer, find, context, &request);
        return true;
    case EVQ_E_INCOMPLETE:
        return true;
    default:
        return false; // This is not a request, so it gets no reply.
    }
}

static bool line_send(struct evq_snapshot_peer *peer)
{
    const ssize_t sent = send(peer->fd, peer->line + peer->line_sent,
                              peer->line_bytes - peer->line_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        return later(sent);
    }
    peer->line_sent += (size_t)sent;
    return true;
}

/* A closed connection raises SIGPIPE in this thread, where every signal is blocked. */
static bool bytes_send(struct evq_snapshot_peer *peer)
{
    off_t at = (off_t)peer->at;
    const int64_t left = peer->end - peer->at;
    const size_t most = left < EVQ_SNAPSHOT_PEER_BLOCK ? (size_t)left : EVQ_SNAPSHOT_PEER_BLOCK;

    const ssize_t sent = sendfile(peer->fd, peer->file, &at, most);
    if (sent <= 0) {
        return later(sent); // 0: the file was truncated; its checksum would show it too.
    }
    peer->at += sent;
    if (peer->at - peer->mark >= EVQ_SNAPSHOT_PEER_BLOCK) {
        peer->mark = peer->at;
        peer->deadline_ms = evq_clock_mono_ms() + EVQ_SNAPSHOT_PEER_BLOCK_MS;
    }
    return true;
}

bool evq_snapshot_peer_step(struct evq_snapshot_peer *peer, evq_snapshot_find_fn find,
                            void *context)
{
    if (!peer_sends(peer)) {
        return request_read(peer, find, context);
    }
    if (peer->line_sent < peer->line_bytes) {
        return line_send(peer) && (!peer->answered || peer->line_sent < peer->line_bytes);
    }
    return peer->at < peer->end && bytes_send(peer) && peer->at < peer->end;
}
