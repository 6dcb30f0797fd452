/* events.c: TensorBoard's files of events. A file is a list of TFRecords: the length of the data,
 * its checksum, the data, and the data's checksum. The data is a message Event of Protocol Buffers
 * (tensorflow/core/util/event.proto); the numbers below are those of its fields. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "log/log.h"

/* ---- records ---- */

/* CRC-32C (Castagnoli), four bits at a time, masked as TFRecords have it. */
static uint32_t events_checksum(const unsigned char *bytes, size_t nbytes)
{
    static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                       0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                       0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                       0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* Numbers are little-endian. */
static unsigned char *events_put(unsigned char *to, uint64_t number, int nbytes)
{
    for (int i = 0; i < nbytes; i++)
        *to++ = (unsigned char)(number >> 8 * i);
    return to;
}

/* Appends the event as a record and empties it. */
static int events_add(ek_appended *to, ek_protobuf *event)
{
    const size_t nbytes = event->nbytes;
    unsigned char *record = event->status < 0 ? NULL : ek_calloc(nbytes + 16, 1);
    int rc = record ? 0 : EK_E_NO_MEMORY;
    if (record) {
        unsigned char *at = events_put(record, nbytes, 8);
        at = events_put(at, events_checksum(record, 8), 4);
        memcpy(at, event->bytes, nbytes);
        events_put(at + nbytes, events_checksum(at, nbytes), 4);
        rc = ek_appended_add(to, record, nbytes + 16);
    }
    free(record);
    ek_protobuf_clear(event);
    return rc;
}

/* ---- events ---- */

enum { EVENT_WALL_TIME = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };

static ek_protobuf events_begin(double wall_time, int64_t step)
{
    ek_protobuf event = {0};
    ek_protobuf_double(&event, EVENT_WALL_TIME, wall_time);
    ek_protobuf_int(&event, EVENT_STEP, step);
    return event;
}

int ek_log_add_event(ek_log_row *row)
{
    ek_protobuf event = events_begin(row->wall_time, row->step), summary = {0};
    ek_protobuf_message(&summary, 1, &row->value);
    ek_protobuf_message(&event, EVENT_SUMMARY, &summary);
    return events_add(&row->log->files[EK_LOG_EVENTS], &event);
}

/* TensorBoard reads files in the order of their names, which have the time. */
int ek_log_open_events(ek_run_log *log, int64_t resume_step)
{
    ek_appended *to = &log->files[EK_LOG_EVENTS];
    struct timespec now;
    char name[64];
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, sizeof name, "events.out.tfevents.%010" PRId64 ".%09ld", (int64_t)now.tv_sec,
             now.tv_nsec);
    EK_TRY(ek_log_open_file(log, EK_LOG_EVENTS, name));
    ek_protobuf event = events_begin(ek_log_wall_time(), 0), session = {0};
    ek_protobuf_text(&event, EVENT_VERSION, "brain.Event:2");
    EK_TRY(events_add(to, &event));
    if (resume_step == EK_UNSET)
        return 0;
    event = events_begin(ek_log_wall_time(), resume_step + 1);
    ek_protobuf_int(&session, 1, 1); /* status: START */
    ek_protobuf_message(&event, EVENT_SESSION, &session);
    return events_add(to, &event);
}
