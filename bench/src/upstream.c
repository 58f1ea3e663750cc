/* A fast stand-in for an engine: as little CPU as possible, so that what is measured is the proxy.
 *
 * POST any path ending in /completions: a fixed chat.completion, or with "stream":true an SSE stream of
 * events, then the usage chunk when asked for and [DONE]. Hints anywhere in the body, in a message's text best,
 * because routers leave out or rename fields: bench_events:N (default --events), bench_burst:N events in one
 * write(2) (default 1), each an HTTP chunk of its own, bench_pace_us:N microseconds between writes (default
 * --pace-us; 0: as fast as the socket takes them).
 * Any GET is answered, for the health checks and questions of the proxies: /v1/models, the information that
 * SGLang's and vLLM's routers ask an engine for, else "ok". Keep-alive, chunked both ways. Loopback only.
 * Prints {"port": N} when listening and its counts as JSON on SIGTERM.
 */
#include "common.h"

#define BODY_LIMIT (8 * 1024 * 1024)
#define BURST_LIMIT 1000

typedef struct Connection {
    int fd;
    bool queued, streaming, include_usage, writable_watched;
    long events_left, events_total, burst, pace_us;
    int64_t due_ns;
    struct Connection *next; /* in the queue of paced streams, or of closed connections */
    Buffer in, out;
} Connection;

static void take_requests(Connection *connection);

static int epoll_fd, timer_fd;
static Connection *queue_head, *queue_tail, *closed;
static const char *model = "bench-model";
static long default_events = 64, default_pace_us = 0;
static unsigned long requests, streams, events_sent, aborted;
static volatile sig_atomic_t stopping;
static Buffer completion, models_list, model_info, head_stream;

static const char CHUNK_FIRST[] =
    "data: {\"id\":\"chatcmpl-5f1c2d7e9a3b4c6d8e0f1a2b3c4d5e6f\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\" the\"},\"logprobs\":null,"
    "\"finish_reason\":null}]}\n\n";
static const char CHUNK_MIDDLE[] =
    "data: {\"id\":\"chatcmpl-5f1c2d7e9a3b4c6d8e0f1a2b3c4d5e6f\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token%ld\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char CHUNK_LAST[] =
    "data: {\"id\":\"chatcmpl-5f1c2d7e9a3b4c6d8e0f1a2b3c4d5e6f\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\".\"},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n";
static const char CHUNK_USAGE[] =
    "data: {\"id\":\"chatcmpl-5f1c2d7e9a3b4c6d8e0f1a2b3c4d5e6f\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,"
    "\"model\":\"%s\",\"choices\":[],\"usage\":{\"prompt_tokens\":32,\"total_tokens\":%ld,\"completion_tokens\":%ld}}\n\n";
static const char COMPLETION[] =
    "{\"id\":\"chatcmpl-0a1b2c3d4e5f60718293a4b5c6d7e8f9\",\"object\":\"chat.completion\",\"created\":1764400000,\"model\":\"%s\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"A proxy carries bytes between two sockets, and "
    "what it costs is what it does besides: reading a head, deciding who may pass, choosing where to, counting what went by. "
    "This answer is about as long as a short chat reply, so that copying it costs what it would cost in earnest.\","
    "\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],"
    "\"usage\":{\"prompt_tokens\":32,\"total_tokens\":96,\"completion_tokens\":64,\"prompt_tokens_details\":null},"
    "\"prompt_logprobs\":null}";

static void on_term(int number) {
    (void)number;
    stopping = 1;
}

/* Freed after this batch of events, which may still name it. */
static void bury(Connection *connection) {
    connection->next = closed;
    closed = connection;
}

static void close_connection(Connection *connection) {
    if (connection->fd < 0) return;
    if (connection->streaming) aborted++;
    close(connection->fd);
    connection->fd = -1;
    if (!connection->queued) bury(connection); /* else step_queue does when it comes by */
}

static void flush_out(Connection *connection) {
    while (connection->out.length) {
        ssize_t sent = send(connection->fd, connection->out.bytes, connection->out.length, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (sent <= 0) return close_connection(connection);
        buffer_drop(&connection->out, (size_t)sent);
    }
    bool want = connection->out.length > 0;
    if (want != connection->writable_watched) {
        watch(epoll_fd, EPOLL_CTL_MOD, connection->fd, EPOLLIN | (want ? EPOLLOUT : 0), connection);
        connection->writable_watched = want;
    }
}

static void put(Connection *connection, const void *bytes, size_t length) {
    buffer_append(&connection->out, bytes, length);
    flush_out(connection);
}

/* One event as one HTTP chunk, to be written with the next flush. */
static void add_event(Connection *connection, const char *event, int length) {
    char chunk[2048];
    int size = snprintf(chunk, sizeof chunk, "%x\r\n%.*s\r\n", (unsigned)length, length, event);
    buffer_append(&connection->out, chunk, (size_t)size);
}

/* The next event, or burst of them, in one write. */
static void send_next_events(Connection *connection) {
    char event[1024];
    int length;
    for (long i = 0; i < connection->burst && connection->events_left > 0; i++) {
        const char *form = connection->events_left == 1                              ? CHUNK_LAST
                           : connection->events_left == connection->events_total ? CHUNK_FIRST
                                                                                     : CHUNK_MIDDLE;
        /* Never the same twice in a row: LiteLLM cuts off a stream that repeats itself. Forms without a number ignore it. */
        length = snprintf(event, sizeof event, form, model, connection->events_left % 10);
        add_event(connection, event, length);
        connection->events_left--;
        events_sent++;
    }
    flush_out(connection);
    if (connection->events_left > 0 || connection->fd < 0) return;
    if (connection->include_usage) {
        length = snprintf(event, sizeof event, CHUNK_USAGE, model, 32 + connection->events_total, connection->events_total);
        add_event(connection, event, length);
        flush_out(connection);
        if (connection->fd < 0) return;
    }
    static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    connection->streaming = false;
    put(connection, end, sizeof end - 1);
}

static void enqueue(Connection *connection) {
    connection->next = NULL;
    connection->queued = true;
    if (queue_tail) queue_tail->next = connection;
    else queue_head = connection;
    queue_tail = connection;
}

/* Members differ in pace only between runs, so the queue is in order of due times well enough. */
static void step_queue(void) {
    int64_t now = now_ns();
    while (queue_head && queue_head->due_ns <= now) {
        Connection *connection = queue_head;
        queue_head = connection->next;
        if (!queue_head) queue_tail = NULL;
        connection->queued = false;
        if (connection->fd < 0) {
            bury(connection);
            continue;
        }
        send_next_events(connection);
        if (connection->fd < 0) continue;
        if (connection->streaming) {
            connection->due_ns += connection->pace_us * 1000;
            enqueue(connection);
        } else {
            take_requests(connection);
        }
    }
    timer_at(timer_fd, queue_head ? queue_head->due_ns : 0);
}

static long number_after(const char *body, size_t length, const char *name, long otherwise) {
    const char *at = memmem(body, length, name, strlen(name));
    if (!at) return otherwise;
    at += strlen(name);
    while (at < body + length && (*at == ' ' || *at == ':')) at++;
    long value = 0, digits = 0;
    for (; at < body + length && *at >= '0' && *at <= '9' && digits < 9; at++, digits++) value = value * 10 + (*at - '0');
    return digits ? value : otherwise;
}

static bool true_after(const char *body, size_t length, const char *name) {
    const char *at = memmem(body, length, name, strlen(name));
    if (!at) return false;
    at += strlen(name);
    while (at < body + length && (*at == ' ' || *at == ':')) at++;
    return body + length - at >= 4 && !memcmp(at, "true", 4);
}

static void answer_plain(Connection *connection, const char *status, const char *type, const char *body, size_t length) {
    char head[256];
    int size = snprintf(head, sizeof head,
                        "HTTP/1.1 %s\r\ndate: Sat, 29 Nov 2025 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %zu\r\n"
                        "content-type: %s\r\n\r\n", status, length, type);
    buffer_append(&connection->out, head, (size_t)size);
    put(connection, body, length);
}

static void answer(Connection *connection, const char *head, size_t head_size, const char *body, size_t length) {
    requests++;
    if (!memcmp(head, "GET ", 4)) {
        if (memmem(head, head_size, "/v1/models", 10))
            return answer_plain(connection, "200 OK", "application/json", models_list.bytes, models_list.length);
        if (memmem(head, head_size, "info HTTP/", 10))
            return answer_plain(connection, "200 OK", "application/json", model_info.bytes, model_info.length);
        return answer_plain(connection, "200 OK", "text/plain; charset=utf-8", "ok\n", 3);
    }
    if (memcmp(head, "POST ", 5)) return answer_plain(connection, "405 Method Not Allowed", "text/plain", "no\n", 3);
    if (!true_after(body, length, "\"stream\""))
        return answer_plain(connection, "200 OK", "application/json", completion.bytes, completion.length);
    streams++;
    connection->streaming = true;
    connection->include_usage = true_after(body, length, "\"include_usage\"");
    connection->events_total = number_after(body, length, "bench_events", default_events);
    if (connection->events_total < 1) connection->events_total = 1;
    connection->events_left = connection->events_total;
    connection->burst = number_after(body, length, "bench_burst", 1);
    if (connection->burst < 1 || connection->burst > BURST_LIMIT) connection->burst = 1;
    connection->pace_us = number_after(body, length, "bench_pace_us", default_pace_us);
    if (connection->pace_us > 0) { /* before the first write: a failed one must find it queued */
        connection->due_ns = now_ns() + connection->pace_us * 1000;
        enqueue(connection);
        if (queue_head == connection) timer_at(timer_fd, connection->due_ns);
    }
    put(connection, head_stream.bytes, head_stream.length);
    if (connection->pace_us > 0) return;
    while (connection->streaming && connection->fd >= 0) send_next_events(connection);
}

/* Joins the chunks of a chunked body in place; the wire length of the whole, 0 while incomplete, -1 when malformed. */
static long join_chunks(char *bytes, size_t length, size_t *body_length) {
    size_t at = 0, joined = 0;
    for (;;) {
        char *line_end = memmem(bytes + at, length - at, "\r\n", 2);
        if (!line_end) return 0;
        unsigned long size = strtoul(bytes + at, NULL, 16);
        at = (size_t)(line_end - bytes) + 2;
        if (size > BODY_LIMIT) return -1;
        if (at + size + 2 > length) return 0;
        if (size == 0) {
            *body_length = joined;
            return (long)at + 2;
        }
        memmove(bytes + joined, bytes + at, size);
        joined += size;
        at += size + 2;
    }
}

/* Takes complete requests out of the input, one at a time: the next waits until a stream has ended. */
static void take_requests(Connection *connection) {
    while (connection->fd >= 0 && !connection->streaming && connection->in.length) {
        size_t head_size = head_length(connection->in.bytes, connection->in.length), value_length;
        if (!head_size) {
            if (connection->in.length > HEAD_LIMIT) close_connection(connection);
            return;
        }
        const char *head = connection->in.bytes;
        char *body = connection->in.bytes + head_size;
        size_t body_length = 0, consumed = head_size;
        const char *value = header(head, head_size, "content-length", &value_length);
        if (value) {
            body_length = strtoul(value, NULL, 10);
            if (body_length > BODY_LIMIT) return close_connection(connection);
            if (connection->in.length - head_size < body_length) return;
            consumed += body_length;
        } else if (header_is(head, head_size, "transfer-encoding", "chunked")) {
            Buffer copy = {0}; /* joining is destructive and may have to wait for more */
            buffer_append(&copy, body, connection->in.length - head_size);
            long used = join_chunks(copy.bytes, copy.length, &body_length);
            if (used > 0) memcpy(body, copy.bytes, body_length);
            free(copy.bytes);
            if (used < 0) return close_connection(connection);
            if (used == 0) return;
            consumed += (size_t)used;
        }
        bool last = header_is(head, head_size, "connection", "close");
        answer(connection, head, head_size, body, body_length);
        buffer_drop(&connection->in, consumed);
        if (last && !connection->streaming && connection->fd >= 0) return close_connection(connection);
    }
}

static void on_readable(Connection *connection) {
    for (;;) {
        buffer_reserve(&connection->in, 16384);
        ssize_t got = recv(connection->fd, connection->in.bytes + connection->in.length,
                           connection->in.capacity - connection->in.length, 0);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (got <= 0) return close_connection(connection);
        connection->in.length += (size_t)got;
        if (connection->in.length > BODY_LIMIT + HEAD_LIMIT) return close_connection(connection);
        if (connection->in.length < connection->in.capacity) break;
    }
    take_requests(connection);
}

static int listen_on(int port, int *bound) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0) die("bind");
    if (listen(fd, 4096) < 0) die("listen");
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0) die("getsockname");
    *bound = ntohs(address.sin_port);
    return fd;
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        no_delay(fd);
        Connection *connection = calloc(1, sizeof *connection);
        if (!connection) die("out of memory");
        connection->fd = fd;
        watch(epoll_fd, EPOLL_CTL_ADD, fd, EPOLLIN, connection);
    }
}

static void free_closed(void) {
    while (closed) {
        Connection *connection = closed;
        closed = connection->next;
        free(connection->in.bytes);
        free(connection->out.bytes);
        free(connection);
    }
}

int main(int argc, char **argv) {
    int port = 0, bound;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port")) port = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--events")) default_events = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--pace-us")) default_pace_us = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--model")) model = argv[i + 1];
        else return fprintf(stderr, "usage: upstream [--port N] [--events N] [--pace-us N] [--model NAME]\n"), 2;
    }
    if (strlen(model) > 128) return fprintf(stderr, "upstream: the model name is too long\n"), 2;
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    char text[2048];
    int size = snprintf(text, sizeof text, COMPLETION, model);
    buffer_append(&completion, text, (size_t)size);
    size = snprintf(text, sizeof text, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1764400000,"
                    "\"owned_by\":\"bench\",\"max_model_len\":8192}]}", model);
    buffer_append(&models_list, text, (size_t)size);
    size = snprintf(text, sizeof text, "{\"model_path\":\"%s\",\"served_model_name\":\"%s\",\"tokenizer_path\":\"%s\","
                    "\"is_generation\":true,\"max_model_len\":8192,\"dp_size\":1,\"tp_size\":1,\"version\":\"0.5.0\"}",
                    model, model, model);
    buffer_append(&model_info, text, (size_t)size);
    size = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\ndate: Sat, 29 Nov 2025 12:00:00 GMT\r\nserver: uvicorn\r\n"
                    "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    buffer_append(&head_stream, text, (size_t)size);

    int listener = listen_on(port, &bound);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll_fd < 0 || timer_fd < 0) die("epoll or timerfd");
    watch(epoll_fd, EPOLL_CTL_ADD, listener, EPOLLIN, &listener);
    watch(epoll_fd, EPOLL_CTL_ADD, timer_fd, EPOLLIN, &timer_fd);
    printf("{\"port\": %d}\n", bound);
    fflush(stdout);

    struct epoll_event ready[512];
    while (!stopping) {
        int count = epoll_wait(epoll_fd, ready, 512, -1);
        for (int i = 0; i < count; i++) {
            void *owner = ready[i].data.ptr;
            if (owner == &listener) {
                accept_all(listener);
            } else if (owner == &timer_fd) {
                uint64_t ticks;
                if (read(timer_fd, &ticks, sizeof ticks) > 0) step_queue();
            } else {
                Connection *connection = owner;
                if (connection->fd >= 0 && ready[i].events & EPOLLOUT) flush_out(connection);
                if (connection->fd >= 0 && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(connection);
            }
        }
        free_closed();
    }
    printf("{\"requests\": %lu, \"streams\": %lu, \"events\": %lu, \"aborted\": %lu}\n", requests, streams, events_sent, aborted);
    return 0;
}
