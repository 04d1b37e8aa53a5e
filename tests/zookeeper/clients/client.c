/* The C client: the queue of sequential ephemerals by hand, as its users write it. Usage: see support.py. */
#define THREADED
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

static volatile int over, state;
static const char *path, *file;

static void say(const char *text) {
    puts(text);
    fflush(stdout);
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void session(zhandle_t *client, int type, int now, const char *of, void *context) {
    (void)client, (void)of, (void)context;
    if (type != ZOO_SESSION_EVENT) return;
    state = now;
    if (now == ZOO_EXPIRED_SESSION_STATE) say("lost");
    if (now == ZOO_CONNECTED_STATE) say("connected");
    if (now == ZOO_CONNECTING_STATE) say("suspended");
}

static zhandle_t *connect_client(const char *hosts, int timeout_ms) {
    zhandle_t *client = zookeeper_init(hosts, session, timeout_ms, NULL, NULL, 0);
    for (int turn = 0; turn < 6000 && state != ZOO_CONNECTED_STATE; turn++) pause_ms(10);
    if (state != ZOO_CONNECTED_STATE) say("failed to connect"), exit(1);
    return client;
}

/* A node before ours was deleted, or the connection was lost. */
static void fire(zhandle_t *client, int type, int now, const char *of, void *context) {
    (void)client, (void)type, (void)now, (void)of;
    *(volatile int *)context = 1;
}

static int by_sequence(const void *left, const void *right) {
    const char *one = *(char *const *)left, *other = *(char *const *)right;
    return strcmp(one + strlen(one) - 10, other + strlen(other) - 10);
}

/* The queue: 0 when it is ours. `own` is the node, made by the first call. */
static int acquire(zhandle_t *client, char *own, size_t length, const char *guid) {
    char prefix[512];
    int code;
    snprintf(prefix, sizeof prefix, "%s/%s-lock-", path, guid);
    while (!*own) {
        code = zoo_create(client, prefix, "me", 2, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE, own, length);
        if (code == ZOK) break;
        *own = 0;
        if (code != ZCONNECTIONLOSS && code != ZOPERATIONTIMEOUT) return code;
        say("failed create");
        pause_ms(100);
        /* It may have been made: its name tells. */
        struct String_vector found = {0, NULL};
        if (zoo_get_children(client, path, 0, &found) != ZOK) continue;
        for (int n = 0; n < found.count; n++)
            if (!strncmp(found.data[n], guid, strlen(guid))) snprintf(own, length, "%s/%s", path, found.data[n]);
        deallocate_String_vector(&found);
    }
    for (;;) {
        /* Static: a watch may fire after this call has gone on. */
        static volatile int fired;
        struct String_vector found = {0, NULL};
        char before[1024] = "";
        code = zoo_get_children(client, path, 0, &found);
        if (code != ZOK) {
            if (code != ZCONNECTIONLOSS && code != ZOPERATIONTIMEOUT) return code;
            say("failed get_children");
            pause_ms(100);
            continue;
        }
        qsort(found.data, found.count, sizeof *found.data, by_sequence);
        int place = 0;
        while (place < found.count && strcmp(found.data[place], strrchr(own, '/') + 1)) place++;
        if (place == found.count) return deallocate_String_vector(&found), ZNONODE;
        if (place > 0) snprintf(before, sizeof before, "%s/%s", path, found.data[place - 1]);
        /* A create whose answer was lost can take effect after a later look for its node: who stands behind it would wait for good. */
        int left = 0;
        for (int n = 0; n < place; n++) {
            if (strncmp(found.data[n], guid, strlen(guid))) continue;
            char node[1024];
            snprintf(node, sizeof node, "%s/%s", path, found.data[n]);
            zoo_delete(client, node, -1);
            left = 1;
        }
        deallocate_String_vector(&found);
        if (left) continue;
        if (!*before) return ZOK;
        fired = 0;
        if (zoo_wexists(client, before, fire, (void *)&fired, NULL) == ZOK)
            for (int turn = 0; turn < 1000 && !fired && !over; turn++) pause_ms(5);
        if (over) return ZOPERATIONTIMEOUT;
    }
}

static void release(zhandle_t *client, char *own) {
    int code;
    while ((code = zoo_delete(client, own, -1)) != ZOK && code != ZNONODE && state != ZOO_EXPIRED_SESSION_STATE)
        say("failed delete"), pause_ms(100);
    *own = 0;
}

static int contend(zhandle_t *client, const char *guid) {
    char own[1024] = "";
    while (!over) {
        int code = acquire(client, own, sizeof own, guid);
        if (code == ZOK) {
            int inside = open(file, O_CREAT | O_EXCL, 0600);
            if (inside < 0) return say("overlap"), 1;
            close(inside);
            pause_ms(5);
            unlink(file);
            say("tenure");
        } else if (!over) {
            printf("failed %s\n", zerror(code));
            fflush(stdout);
        }
        if (*own) release(client, own);
        pause_ms(5);
    }
    return 0;
}

#define ENSURE(condition)                                       \
    if (!(condition)) {                                         \
        printf("FAILED line %d: %s\n", __LINE__, #condition);   \
        return 1;                                               \
    }

static int recipes(zhandle_t *client) {
    char made[1024], node[600], data[32];
    int length = sizeof data;
    volatile int fired = 0;
    struct Stat stat;
    struct String_vector found = {0, NULL};
    snprintf(node, sizeof node, "%s/node", path);
    ENSURE(zoo_wexists(client, node, fire, (void *)&fired, &stat) == ZNONODE);
    ENSURE(zoo_create2(client, node, "x", 1, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, made, sizeof made, &stat) == ZOK);
    ENSURE(stat.ephemeralOwner == zoo_client_id(client)->client_id);
    for (int turn = 0; turn < 6000 && !fired; turn++) pause_ms(10);
    ENSURE(fired);
    ENSURE(zoo_create(client, node, "x", 1, &ZOO_OPEN_ACL_UNSAFE, 0, made, sizeof made) == ZNODEEXISTS);
    ENSURE(zoo_set2(client, node, "yy", 2, 0, &stat) == ZOK && stat.version == 1);
    ENSURE(zoo_set(client, node, "z", 1, 0) == ZBADVERSION);
    ENSURE(zoo_get(client, node, 0, data, &length, &stat) == ZOK && length == 2 && !memcmp(data, "yy", 2));
    ENSURE(zoo_get_children2(client, path, 0, &found, &stat) == ZOK && found.count == 1 && stat.numChildren == 1);
    say("ok nodes");

    zoo_op_t operations[3];
    zoo_op_result_t results[3];
    char below[700], text[64];
    snprintf(below, sizeof below, "%s/below", path);
    zoo_check_op_init(&operations[0], node, 1);
    zoo_create_op_init(&operations[1], below, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, text, sizeof text);
    zoo_delete_op_init(&operations[2], below, -1);
    ENSURE(zoo_multi(client, 3, operations, results) == ZOK);
    zoo_check_op_init(&operations[0], node, 9);
    ENSURE(zoo_multi(client, 3, operations, results) == ZBADVERSION && results[1].err == ZRUNTIMEINCONSISTENCY);
    ENSURE(zoo_delete(client, node, -1) == ZOK && zoo_exists(client, node, 0, NULL) == ZNONODE);
    say("ok multi");
    return 0;
}

static void *read_input(void *unused) {
    char byte;
    while (read(0, &byte, 1) > 0) {}
    over = 1;
    return unused;
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    const char *mode = arguments[2];
    pthread_t reader;
    path = arguments[4];
    file = count > 5 ? arguments[5] : NULL;
    zoo_set_debug_level(0);
    zhandle_t *client = connect_client(arguments[3], strcmp(mode, "hold") ? 20000 : 4000);
    char guid[64];
    snprintf(guid, sizeof guid, "_c_%lx-%ld", (long)zoo_client_id(client)->client_id, (long)getpid());
    if (!strcmp(mode, "recipes")) {
        int code = recipes(client);
        zookeeper_close(client);
        return code;
    }
    pthread_create(&reader, NULL, read_input, NULL);
    if (!strcmp(mode, "contend")) {
        int code = contend(client, guid);
        zookeeper_close(client);
        return code;
    }
    char own[1024] = "";
    if (acquire(client, own, sizeof own, guid) != ZOK) return 1;
    printf("held 0x%lx\n", (long)zoo_client_id(client)->client_id);
    fflush(stdout);
    while (!over) pause_ms(20);
    return 0;
}
