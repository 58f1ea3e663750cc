/* Sends a fixed number of requests over keep-alive connections and checks every answer.
 *
 * Closed loop (default) or, with --rate, at a steady rate, latency counted from the time a request was
 * due. With --events N an answer must be an SSE stream of N data events and one [DONE]; without, a
 * body that ends as its head says. Prints one JSON object; exit status 0 also when requests failed.
 */
#include "common.h"

#define GAP_LIMIT 4000000

typedef enum { IDLE, CONNECTING, SENDING, HEAD, BODY } Phase;
typedef enum { BY_LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, UNTIL_CLOSE } Framing;

typedef struct Connection {
    int fd;
    Phase phase;
    Framing framing;
    bool reused, close_after;
    int status;
    long left, events, dones, error_events, line_length;
    char line[24];
    int64_t start_ns, first_ns, last_ns, touched_ns;
    size_t sent;
    Buffer head;
} Connection;

typedef struct {
    double *values;
    long count, capacity;
} Samples;

static int epoll_fd, timer_fd;
static Connection *connections;
static Connection **idle;
static long idle_count, concurrency = 1, total = 1, started, finished, expected_events = -1;
static double rate;
static int64_t begin_ns, limit_ns = 60000000000, stall_ns = 30000000000;
static struct sockaddr_in target;
static Buffer request;
static Samples latencies, firsts, gaps;
static long ok, wrong_status, transport, wrong_events, missing_done, timeouts, cut_short, events_seen, reads_seen, bytes_seen;
static long reconnects, statuses[600];
static long good_status = 200;

static void sample(Samples *samples, double value) {
    if (samples->count == samples->capacity) {
        if (samples->capacity >= GAP_LIMIT) return;
        samples->capacity = samples->capacity ? samples->capacity * 2 : 4096;
        samples->values = realloc(samples->values, (size_t)samples->capacity * sizeof(double));
        if (!samples->values) die("out of memory");
    }
    samples->values[samples->count++] = value;
}

static void disconnect(Connection *connection) {
    if (connection->fd >= 0) close(connection->fd);
    connection->fd = -1;
}

static void finish(Connection *connection) {
    connection->phase = IDLE;
    connection->head.length = 0;
    idle[idle_count++] = connection;
    finished++;
}

static void fail(Connection *connection, long *counter) {
    (*counter)++;
    disconnect(connection);
    finish(connection);
}

static void complete(Connection *connection) {
    int64_t now = now_ns();
    statuses[connection->status]++;
    if (connection->status != good_status) {
        wrong_status++;
    } else if (expected_events >= 0 && connection->dones != 1) {
        missing_done++;
    } else if (expected_events >= 0 && (connection->events != expected_events || connection->error_events)) {
        wrong_events++;
    } else {
        ok++;
        sample(&latencies, (double)(now - connection->start_ns) / 1e6);
        if (connection->first_ns) sample(&firsts, (double)(connection->first_ns - connection->start_ns) / 1e6);
    }
    if (connection->close_after) disconnect(connection);
    finish(connection);
}

static void on_line(Connection *connection, int64_t now) {
    if (connection->line_length >= 6 && !memcmp(connection->line, "data: ", 6)) {
        if (!memcmp(connection->line + 6, "[DONE]", 6) && connection->line_length >= 12) {
            connection->dones++;
        } else {
            connection->events++;
            events_seen++;
            if (connection->dones) connection->error_events++; /* nothing may follow [DONE] */
            if (connection->line_length >= 14 && !memcmp(connection->line + 6, "{\"error\"", 8)) connection->error_events++;
            if (!connection->first_ns) connection->first_ns = now;
            else sample(&gaps, (double)(now - connection->last_ns) / 1e6);
            connection->last_ns = now;
        }
    }
    connection->line_length = 0;
}

static void on_body(Connection *connection, const char *bytes, size_t length, int64_t now) {
    bytes_seen += (long)length;
    if (expected_events < 0) return;
    while (length) {
        const char *end = memchr(bytes, '\n', length);
        size_t part = end ? (size_t)(end - bytes) : length, room = sizeof connection->line - 1;
        if ((size_t)connection->line_length < room) {
            size_t copy = room - (size_t)connection->line_length < part ? room - (size_t)connection->line_length : part;
            memcpy(connection->line + connection->line_length, bytes, copy);
        }
        connection->line_length += (long)part;
        if (!end) return;
        on_line(connection, now);
        bytes += part + 1;
        length -= part + 1;
    }
}

/* Decodes the answer's framing; true when it is complete, *bad when it is malformed. */
static bool take_body(Connection *connection, const char *bytes, size_t length, int64_t now, bool *bad) {
    size_t at = 0;
    while (at < length || (connection->framing == BY_LENGTH && connection->left == 0)) {
        switch (connection->framing) {
        case UNTIL_CLOSE:
            on_body(connection, bytes + at, length - at, now);
            return false;
        case BY_LENGTH:
        case CHUNK_DATA: {
            size_t part = length - at < (size_t)connection->left ? length - at : (size_t)connection->left;
            on_body(connection, bytes + at, part, now);
            at += part;
            connection->left -= (long)part;
            if (connection->left) return false;
            if (connection->framing == BY_LENGTH) return true;
            connection->framing = CHUNK_END;
            break;
        }
        case CHUNK_END:
            if (bytes[at++] == '\n') connection->framing = CHUNK_SIZE;
            break;
        case CHUNK_SIZE: {
            char c = bytes[at++];
            if (c == '\n') {
                connection->framing = connection->left ? CHUNK_DATA : TRAILER;
            } else if (c != '\r') {
                int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
                if (digit < 0 || connection->left > 1 << 26) return *bad = true;
                connection->left = connection->left * 16 + digit;
            }
            break;
        }
        case TRAILER: /* no proxy measured here sends one: a bare line ends it */
            if (bytes[at++] == '\n') return true;
            break;
        }
    }
    return false;
}

static bool take_head(Connection *connection, size_t size) {
    const char *head = connection->head.bytes, *value;
    size_t length;
    if (size < 16 || memcmp(head, "HTTP/1.", 7)) return false;
    connection->status = atoi(head + 9);
    if (connection->status < 200 || connection->status > 599) return false;
    connection->close_after = header_is(head, size, "connection", "close");
    connection->left = 0;
    if ((value = header(head, size, "content-length", &length))) {
        connection->framing = BY_LENGTH;
        connection->left = atol(value);
    } else if (header_is(head, size, "transfer-encoding", "chunked")) {
        connection->framing = CHUNK_SIZE;
    } else {
        connection->framing = UNTIL_CLOSE;
        connection->close_after = true;
    }
    connection->events = connection->dones = connection->error_events = connection->line_length = 0;
    connection->phase = BODY;
    return true;
}

static void send_request(Connection *connection) {
    while (connection->sent < request.length) {
        ssize_t sent = send(connection->fd, request.bytes + connection->sent, request.length - connection->sent, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch(epoll_fd, EPOLL_CTL_MOD, connection->fd, EPOLLIN | EPOLLOUT, connection);
            return;
        }
        if (sent <= 0) return fail(connection, &transport);
        connection->sent += (size_t)sent;
    }
    connection->phase = HEAD;
    watch(epoll_fd, EPOLL_CTL_MOD, connection->fd, EPOLLIN, connection);
}

static void open_connection(Connection *connection) {
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0) die("socket");
    no_delay(connection->fd);
    reconnects++;
    connection->reused = false;
    connection->phase = CONNECTING;
    if (connect(connection->fd, (struct sockaddr *)&target, sizeof target) < 0 && errno != EINPROGRESS)
        return fail(connection, &transport);
    watch(epoll_fd, EPOLL_CTL_ADD, connection->fd, EPOLLIN | EPOLLOUT, connection);
}

static void start(Connection *connection, int64_t start_ns) {
    started++;
    connection->start_ns = start_ns;
    connection->touched_ns = now_ns();
    connection->first_ns = connection->last_ns = 0;
    connection->sent = 0;
    if (connection->fd < 0) return open_connection(connection);
    connection->reused = true;
    connection->phase = SENDING;
    send_request(connection);
}

/* A server may close a connection that idled just as it is used again: that is no failure of the answer. */
static bool try_again(Connection *connection) {
    if (!connection->reused || connection->head.length || connection->phase == BODY) return false;
    disconnect(connection);
    connection->sent = 0;
    open_connection(connection);
    return true;
}

/* Else a proxy that leaves Nagle's algorithm on would be seen through the 40 ms of a delayed acknowledgement,
 * several events at a time. The kernel forgets the option, so it is set after each read, whatever the proxy. */
static void quick_ack(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
}

static void on_readable(Connection *connection) {
    char bytes[65536];
    for (;;) {
        ssize_t got = recv(connection->fd, bytes, sizeof bytes, 0);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (connection->phase == IDLE) return disconnect(connection);
        if (got <= 0) {
            if (got == 0 && connection->phase == BODY && connection->framing == UNTIL_CLOSE) return complete(connection);
            if (try_again(connection)) return;
            return fail(connection, connection->phase == BODY ? &cut_short : &transport);
        }
        reads_seen++;
        if (expected_events >= 0) quick_ack(connection->fd);
        int64_t now = now_ns();
        connection->touched_ns = now;
        const char *body = bytes;
        size_t length = (size_t)got;
        size_t size = 0, before = connection->head.length;
        if (connection->phase != BODY) {
            buffer_append(&connection->head, bytes, length);
            size = head_length(connection->head.bytes, connection->head.length);
            if (!size && connection->head.length > HEAD_LIMIT) return fail(connection, &transport);
            if (!size) continue;
            if (!take_head(connection, size)) return fail(connection, &transport);
            body += size - before;
            length -= size - before;
        }
        bool bad = false;
        bool whole = take_body(connection, body, length, now, &bad);
        if (bad) return fail(connection, &transport);
        if (whole) return complete(connection);
        if ((size_t)got < sizeof bytes) return;
    }
}

/* Starts what is due; returns when to wake next, 0 for not by time. */
static int64_t start_due(void) {
    while (idle_count && started < total) {
        int64_t now = now_ns(), due = now;
        if (rate > 0) {
            due = begin_ns + (int64_t)((double)started / rate * 1e9);
            if (due > now) return due;
        }
        start(idle[--idle_count], due);
    }
    return 0;
}

static void give_up_on_stalled(int64_t now) {
    for (long i = 0; i < concurrency; i++) {
        Connection *connection = &connections[i];
        if (connection->phase != IDLE && now - connection->touched_ns > stall_ns) fail(connection, &timeouts);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_samples(const char *name, Samples *samples) {
    qsort(samples->values, (size_t)samples->count, sizeof(double), ascending);
    printf(", \"%s\": ", name);
    if (!samples->count) {
        printf("null");
        return;
    }
    double sum = 0;
    for (long i = 0; i < samples->count; i++) sum += samples->values[i];
    static const struct { const char *name; double share; } marks[] = {{"p50", .5}, {"p90", .9}, {"p99", .99}, {"max", 1}};
    printf("{\"count\": %ld, \"mean\": %.4f", samples->count, sum / (double)samples->count);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        long at = (long)(marks[i].share * (double)(samples->count - 1) + .5);
        printf(", \"%s\": %.4f", marks[i].name, samples->values[at]);
    }
    printf("}");
}

static void report(void) {
    printf("{\"requests\": %ld, \"ok\": %ld, \"failed\": %ld", total, ok, total - ok);
    printf(", \"failures\": {\"status\": %ld, \"transport\": %ld, \"cut_short\": %ld, \"events\": %ld, \"done\": %ld, \"stalled\": %ld, "
           "\"not_finished\": %ld}", wrong_status, transport, cut_short, wrong_events, missing_done, timeouts, total - finished);
    printf(", \"statuses\": {");
    for (int i = 0, first = 1; i < 600; i++)
        if (statuses[i]) printf("%s\"%d\": %ld", first ? "" : ", ", i, statuses[i]), first = 0;
    printf("}, \"seconds\": %.4f, \"connections_opened\": %ld, \"events\": %ld, \"reads\": %ld, \"bytes\": %ld",
           (double)(now_ns() - begin_ns) / 1e9, reconnects, events_seen, reads_seen, bytes_seen);
    print_samples("latency_ms", &latencies);
    print_samples("ttft_ms", &firsts);
    print_samples("gap_ms", &gaps);
    printf("}\n");
}

static int usage(void) {
    fprintf(stderr, "usage: loadgen --port N --body FILE [--path /v1/chat/completions] [--requests N] [--concurrency N] [--rate PER_S]\n"
                    "               [--events N] [--status 200] [--header 'Name: value']... [--limit-s N] [--stall-s N]\n");
    return 2;
}

static void read_file(const char *name, Buffer *buffer) {
    FILE *file = fopen(name, "rb");
    char bytes[65536];
    size_t got;
    if (!file) die(name);
    while ((got = fread(bytes, 1, sizeof bytes, file))) buffer_append(buffer, bytes, got);
    fclose(file);
}

int main(int argc, char **argv) {
    const char *path = "/v1/chat/completions", *body_file = NULL;
    int port = 0;
    Buffer headers = {0}, body = {0};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return usage();
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--path")) path = value;
        else if (!strcmp(name, "--body")) body_file = value;
        else if (!strcmp(name, "--requests")) total = atol(value);
        else if (!strcmp(name, "--concurrency")) concurrency = atol(value);
        else if (!strcmp(name, "--rate")) rate = atof(value);
        else if (!strcmp(name, "--events")) expected_events = atol(value);
        else if (!strcmp(name, "--status")) good_status = atol(value);
        else if (!strcmp(name, "--limit-s")) limit_ns = (int64_t)(atof(value) * 1e9);
        else if (!strcmp(name, "--stall-s")) stall_ns = (int64_t)(atof(value) * 1e9);
        else if (!strcmp(name, "--header")) buffer_append(&headers, value, strlen(value)), buffer_append(&headers, "\r\n", 2);
        else return usage();
    }
    if (!port || !body_file || concurrency < 1 || total < 1) return usage();
    read_file(body_file, &body);
    char head[1024];
    int size = snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                        "accept: */*\r\nuser-agent: bench-loadgen\r\ncontent-length: %zu\r\n", path, port, body.length);
    if (size >= (int)sizeof head) return usage();
    buffer_append(&request, head, (size_t)size);
    buffer_append(&request, headers.bytes ? headers.bytes : "", headers.length);
    buffer_append(&request, "\r\n", 2);
    buffer_append(&request, body.bytes ? body.bytes : "", body.length);
    target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    connections = calloc((size_t)concurrency, sizeof *connections);
    idle = calloc((size_t)concurrency, sizeof *idle);
    if (!connections || !idle) die("out of memory");
    for (long i = 0; i < concurrency; i++) {
        connections[i].fd = -1;
        idle[idle_count++] = &connections[i];
    }
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll_fd < 0 || timer_fd < 0) die("epoll or timerfd");
    watch(epoll_fd, EPOLL_CTL_ADD, timer_fd, EPOLLIN, NULL);

    struct epoll_event ready[512];
    begin_ns = now_ns();
    int64_t checked = begin_ns;
    while (finished < total) {
        timer_at(timer_fd, start_due());
        int count = epoll_wait(epoll_fd, ready, 512, 200);
        for (int i = 0; i < count; i++) {
            Connection *connection = ready[i].data.ptr;
            uint64_t ticks;
            if (!connection) {
                (void)!read(timer_fd, &ticks, sizeof ticks);
                continue;
            }
            if (connection->fd < 0) continue;
            if (connection->phase == CONNECTING && ready[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
                int error = 0;
                socklen_t length = sizeof error;
                getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length);
                if (error) {
                    fail(connection, &transport);
                    continue;
                }
                connection->phase = SENDING;
            }
            if (connection->phase == SENDING && ready[i].events & EPOLLOUT) send_request(connection);
            if (connection->fd >= 0 && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(connection);
        }
        int64_t now = now_ns();
        if (now - begin_ns > limit_ns) break;
        if (now - checked > 1000000000) give_up_on_stalled(checked = now);
    }
    report();
    return 0;
}
