/* hosts_switch.c: the network between the machines of the script `hosts`: a switch, with links
 * that have a rate and a delay, lose frames, or are cut.
 *
 *     switch LINKS PID...
 *
 * Makes the device eth0, a tap, in the network namespace of each process, for machines h1, h2, ...,
 * and passes frames between them. LINKS is a file with a line for each machine,
 *
 *     h1 up 100mbit 1ms 0% ,h2,
 *
 * its name, state (up, down, or mute: what it sends is lost), rate (0: no limit), delay of what it
 * sends, share of frames that are lost in each direction, and machines to which it is cut. SIGHUP
 * makes the switch read LINKS again.
 *
 * A frame waits on its sender's wire for the delay, then in its receiver's port for the rate. What
 * a machine sends has the rate by a queue of its own kernel, of which TCP knows. Frames are lost by
 * a generator with a fixed seed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 99, FRAME = 1 << 17, PORT = 1 << 20 /* bytes that wait in a port; more are lost */ };
enum { HEADER = sizeof(struct virtio_net_hdr), ADDRESS = 6 };

typedef struct switch_frame {
    struct switch_frame *next;
    int to;
    double due; /* seconds */
    size_t length;
    unsigned char bytes[];
} switch_frame;

typedef struct switch_queue {
    switch_frame *first, **end;
    size_t bytes;
} switch_queue;

typedef struct switch_link {
    int card;
    bool sends, hears, cut[MOST + 1];
    double rate, delay, loss; /* bytes a second, seconds, share */
    double free;              /* when the port's last frame has been received */
    switch_queue wire, port;
} switch_link;

static switch_link links[MOST + 1];
static int count;
static volatile sig_atomic_t changed = 1; /* LINKS */

static _Noreturn void switch_fail(const char *what)
{
    fprintf(stderr, "switch: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double switch_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- links ---- */

/* Offloads let large writes travel as one frame, which would be lost as one. */
static void switch_offload(int card, bool whole)
{
    if (ioctl(card, TUNSETOFFLOAD, whole ? TUN_F_CSUM | TUN_F_TSO4 : 0) < 0)
        switch_fail("TUNSETOFFLOAD");
}

static int switch_card(int number, const char *pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    int space = open(path, O_RDONLY | O_CLOEXEC), size = HEADER;
    if (space < 0 || setns(space, CLONE_NEWNET) < 0)
        switch_fail(path);
    close(space);
    int card = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq device = {.ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    if (card < 0 || ioctl(card, TUNSETIFF, &device) < 0 || ioctl(card, TUNSETVNETHDRSZ, &size) < 0)
        switch_fail("/dev/net/tun");
    const unsigned char address[ADDRESS] = {2, [ADDRESS - 1] = (unsigned char)number};
    device.ifr_hwaddr = (struct sockaddr){.sa_family = 1 /* ARPHRD_ETHER */};
    memcpy(device.ifr_hwaddr.sa_data, address, sizeof address);
    if (ioctl(card, SIOCSIFHWADDR, &device) < 0)
        switch_fail("SIOCSIFHWADDR");
    return card;
}

/* Returns the number at the beginning of the text, times the factor of its unit. */
static double switch_number(const char *text)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"gbit", 125e6}, {"mbit", 125e3}, {"kbit", 125},
                 {"ms", 1e-3},    {"us", 1e-6},    {"%", 1e-2}};
    char *unit;
    double number = strtod(text, &unit);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0)
            return number * units[i].factor;
    return number;
}

static void switch_read(const char *path)
{
    char state[8], rate[32], delay[32], loss[32], cut[512], name[16];
    bool whole = true;
    FILE *file = fopen(path, "re");
    if (!file)
        switch_fail(path);
    for (int n = 1; n <= count && fscanf(file, "%*s %7s %31s %31s %31s %511s", state, rate, delay,
                                         loss, cut) == 5;
         n++) {
        switch_link *link = &links[n];
        link->hears = strcmp(state, "down") != 0;
        link->sends = strcmp(state, "up") == 0;
        link->rate = switch_number(rate);
        link->delay = switch_number(delay);
        link->loss = switch_number(loss);
        whole = whole && link->loss == 0;
        for (int to = 1; to <= count; to++) {
            snprintf(name, sizeof name, ",h%d,", to);
            link->cut[to] = strstr(cut, name) != NULL;
        }
    }
    fclose(file);
    for (int n = 1; n <= count; n++)
        switch_offload(links[n].card, whole);
}

/* ---- frames ---- */

static void switch_put(switch_queue *queue, switch_frame *frame, double due)
{
    frame->next = NULL;
    frame->due = due;
    *(queue->first ? queue->end : &queue->first) = frame;
    queue->end = &frame->next;
    queue->bytes += frame->length;
}

/* Returns the first frame if it is due, and NULL otherwise; then *next is at most its time. */
static switch_frame *switch_take(switch_queue *queue, double time, double *next)
{
    switch_frame *frame = queue->first;
    if (frame && frame->due > time) {
        *next = frame->due < *next ? frame->due : *next;
        return NULL;
    }
    if (frame) {
        queue->first = frame->next;
        queue->bytes -= frame->length;
    }
    return frame;
}

/* Splitmix64. */
static bool switch_loses(const switch_link *link)
{
    static uint64_t seed;
    uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53 < link->loss;
}

static void switch_send(int from, int to, const unsigned char *bytes, size_t length)
{
    switch_frame *frame = malloc(sizeof *frame + length);
    if (!frame)
        switch_fail("memory");
    *frame = (switch_frame){.to = to, .length = length};
    memcpy(frame->bytes, bytes, length);
    switch_put(&links[from].wire, frame, switch_now() + links[from].delay);
}

/* A frame begins with the address of its receiver, behind the header of virtio. */
static void switch_read_card(int from)
{
    static unsigned char bytes[FRAME];
    for (int i = 0; i < 64; i++) {
        ssize_t length = read(links[from].card, bytes, sizeof bytes);
        if (length < HEADER + 2 * ADDRESS)
            return;
        for (int to = 1; to <= count && links[from].sends; to++)
            if (to != from && ((bytes[HEADER] & 1) || bytes[HEADER + ADDRESS - 1] == to))
                switch_send(from, to, bytes, (size_t)length);
    }
}

static void switch_arrive(const switch_link *from, switch_frame *frame)
{
    switch_link *to = &links[frame->to];
    if (!to->hears || from->cut[frame->to] || to->port.bytes > PORT || switch_loses(from) ||
        switch_loses(to)) {
        free(frame);
        return;
    }
    to->free = to->free > frame->due ? to->free : frame->due;
    if (to->rate > 0)
        to->free += (double)frame->length / to->rate;
    switch_put(&to->port, frame, to->free);
}

/* Returns when the next frame is due, at most an hour from now. */
static double switch_move(void)
{
    double time = switch_now(), next = time + 3600;
    switch_frame *frame;
    for (int n = 1; n <= count; n++)
        while ((frame = switch_take(&links[n].wire, time, &next)))
            switch_arrive(&links[n], frame);
    for (int n = 1; n <= count; n++)
        while ((frame = switch_take(&links[n].port, time, &next))) {
            ssize_t written = write(links[n].card, frame->bytes, frame->length);
            (void)written; /* the machine may be gone */
            free(frame);
        }
    return next;
}

static void switch_change(int number)
{
    (void)number;
    changed = 1;
}

int main(int argc, char **argv)
{
    struct pollfd files[MOST];
    sigset_t hup, none;
    if (argc < 3 || argc > MOST + 2)
        return fprintf(stderr, "usage: switch LINKS PID...\n"), 2;
    sigemptyset(&none);
    sigemptyset(&hup);
    sigaddset(&hup, SIGHUP);
    sigprocmask(SIG_BLOCK, &hup, NULL);
    sigaction(SIGHUP, &(struct sigaction){.sa_handler = switch_change}, NULL);
    count = argc - 2;
    for (int n = 1; n <= count; n++) {
        links[n].card = switch_card(n, argv[n + 1]);
        files[n - 1] = (struct pollfd){.fd = links[n].card, .events = POLLIN};
    }
    for (;;) {
        if (changed)
            switch_read(argv[1]);
        changed = 0;
        double rest = switch_move() - switch_now();
        struct timespec wait = {(time_t)(rest > 0 ? rest : 0), 0};
        wait.tv_nsec = (long)(1e9 * ((rest > 0 ? rest : 0) - (double)wait.tv_sec));
        if (ppoll(files, (nfds_t)count, &wait, &none) <= 0)
            continue;
        for (int n = 1; n <= count; n++)
            if (files[n - 1].revents & POLLIN)
                switch_read_card(n);
    }
}
