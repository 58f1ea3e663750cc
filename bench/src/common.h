/* What upstream and loadgen share: sockets, time, a growing buffer, header look-up. Linux only (epoll, timerfd). */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define HEAD_LIMIT 65536

typedef struct {
    char *bytes;
    size_t length, capacity;
} Buffer;

static inline void die(const char *what) {
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

static inline void buffer_reserve(Buffer *buffer, size_t extra) {
    if (buffer->length + extra <= buffer->capacity) return;
    size_t capacity = buffer->capacity ? buffer->capacity : 4096;
    while (capacity < buffer->length + extra) capacity *= 2;
    buffer->bytes = realloc(buffer->bytes, capacity);
    if (!buffer->bytes) die("out of memory");
    buffer->capacity = capacity;
}

static inline void buffer_append(Buffer *buffer, const void *bytes, size_t length) {
    buffer_reserve(buffer, length);
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
}

static inline void buffer_drop(Buffer *buffer, size_t length) {
    memmove(buffer->bytes, buffer->bytes + length, buffer->length - length);
    buffer->length -= length;
}

/* Nanoseconds on the monotonic clock. */
static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Wake at an absolute time on the monotonic clock; 0 disarms. */
static inline void timer_at(int timer, int64_t at_ns) {
    struct itimerspec spec = {0};
    if (at_ns > 0) {
        spec.it_value.tv_sec = at_ns / 1000000000;
        spec.it_value.tv_nsec = at_ns % 1000000000;
    }
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &spec, NULL) < 0) die("timerfd_settime");
}

static inline void watch(int epoll, int operation, int fd, uint32_t events, void *owner) {
    struct epoll_event event = {.events = events, .data = {.ptr = owner}};
    if (epoll_ctl(epoll, operation, fd, &event) < 0) die("epoll_ctl");
}

static inline void no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Length of the head including its blank line, 0 while incomplete. */
static inline size_t head_length(const char *bytes, size_t length) {
    const char *end = memmem(bytes, length, "\r\n\r\n", 4);
    return end ? (size_t)(end - bytes) + 4 : 0;
}

/* The value of a header within a complete head, or NULL; *length without surrounding blanks. */
static inline const char *header(const char *head, size_t head_size, const char *name, size_t *length) {
    size_t name_length = strlen(name);
    const char *line = head, *end = head + head_size;
    while ((line = memmem(line, (size_t)(end - line), "\r\n", 2)) && (line += 2) < end) {
        if ((size_t)(end - line) <= name_length || line[name_length] != ':' || strncasecmp(line, name, name_length)) continue;
        const char *value = line + name_length + 1;
        const char *stop = memmem(value, (size_t)(end - value), "\r\n", 2);
        while (value < stop && *value == ' ') value++;
        while (stop > value && stop[-1] == ' ') stop--;
        *length = (size_t)(stop - value);
        return value;
    }
    return NULL;
}

static inline bool header_is(const char *head, size_t head_size, const char *name, const char *expected) {
    size_t length;
    const char *value = header(head, head_size, name, &length);
    return value && length == strlen(expected) && !strncasecmp(value, expected, length);
}

#endif
