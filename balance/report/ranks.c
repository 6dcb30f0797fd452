/* ranks.c: the exchange between the ranks of a job that write a report.
 *
 * Each rank sends its report as bytes, and every rank receives all reports. Reading functions then
 * read the received data: devices, threads and spans of all ranks, one rank after another. Ranks
 * run one version of the library on machines of one kind, so that structs are sent as their bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "core/thread.h"
#include "evenkeel/autograd.h"
#include "report/collect.h"

/* Sets *ranks to one reference, or to NULL if there are no other ranks. An error that was pending
 * before stays, and doesn't fail this call. */
static int ranks_of(ek_process_group *group, ek_ranks **ranks)
{
    ek_error_record before;
    ek_error_take(&before);
    *ranks = ek_ranks_of ? ek_ranks_of(group) : NULL;
    int rc = *ranks ? 0 : ek_error_status();
    if (rc >= 0)
        ek_error_raise(&before);
    return rc;
}

/* ---- waits ---- */

int ek_report_begin_waits(ek_report *report)
{
    ek_ranks *ranks;
    report->rank_count = 1;
    EK_TRY(ranks_of(report->group, &ranks));
    if (!ranks)
        return 0;
    report->rank = ranks->rank;
    report->rank_count = ranks->size;
    report->at_start.of = ek_calloc((size_t)ranks->size, sizeof(ek_ranks_wait));
    report->at_finish.of = ek_calloc((size_t)ranks->size, sizeof(ek_ranks_wait));
    int rc = report->at_start.of && report->at_finish.of ? 0 : ek_error_pending();
    if (rc == 0) {
        report->at_start.exposed = ranks->waits(ranks, report->at_start.of);
        report->at_finish.exposed = report->at_start.exposed;
        memcpy(report->at_finish.of, report->at_start.of,
               (size_t)ranks->size * sizeof(ek_ranks_wait));
    }
    ek_object_release(ranks);
    return rc;
}

int ek_report_note_waits(ek_report *report)
{
    ek_ranks *ranks = NULL;
    if (report->rank_count > 1)
        EK_TRY(ranks_of(report->group, &ranks));
    if (!ranks)
        return 0;
    report->at_finish.exposed = ranks->waits(ranks, report->at_finish.of);
    ek_object_release(ranks);
    return 0;
}

void ek_report_free_waits(ek_report *report)
{
    free(report->at_start.of);
    free(report->at_finish.of);
}

void ek_report_own_rank(const ek_report *report, ek_rank_report *rank)
{
    const double nanosecond = 1e-9;
    uint64_t waited = 0, most = 0;
    *rank = (ek_rank_report){.rank = report->rank,
                             .steps = report->steps.total,
                             .seconds = nanosecond * (double)report->steps.ns,
                             .waited_for = -1};
    for (int r = 0; r < report->rank_count && report->rank_count > 1; r++) {
        const ek_ranks_wait *from = &report->at_start.of[r], *to = &report->at_finish.of[r];
        const uint64_t ns = to->waited - from->waited;
        const int64_t calls = (int64_t)(to->calls - from->calls);
        rank->calls += calls;
        rank->last += r == report->rank ? calls : 0;
        waited += ns;
        if (ns > most) {
            most = ns;
            rank->waited_for = r;
        }
    }
    rank->waited = nanosecond * (double)waited;
    rank->exposed = nanosecond * (double)(report->at_finish.exposed - report->at_start.exposed);
}

/* ---- what a rank sends ---- */

typedef struct share_head {
    ek_rank_report rank;
    int64_t dropped;
    int devices, spans, threads;
} share_head;

/* The head of a rank's data. Each device's numbers, paths of holders, counts and samples follow,
 * then spans, then the devices of threads. */
typedef struct share {
    char *bytes;
    int count, room;
} share;

static int share_put(share *to, const void *data, size_t nbytes)
{
    EK_TRY(ek_grow(&to->bytes, &to->room, to->count + (int)nbytes));
    if (nbytes > 0)
        memcpy(to->bytes + to->count, data, nbytes);
    to->count += (int)nbytes;
    return 0;
}

typedef int share_reader(const ek_report *report, int index, ek_memory_sample *samples, int room);
static share_reader *const share_readers[2] = {ek_report_memory, ek_report_step_memory};

static int share_put_paths(share *to, const ek_memory_holder *holders, int count)
{
    for (int i = 0; i < count; i++)
        EK_TRY(share_put(to, holders[i].path, strlen(holders[i].path) + 1));
    return 0;
}

static int share_put_device(share *to, const ek_report *report, int index, int rank)
{
    ek_device_report numbers;
    EK_TRY(ek_report_get_device(report, index, &numbers));
    numbers.rank = rank;
    EK_TRY(share_put(to, &numbers, sizeof numbers));
    EK_TRY(share_put_paths(to, numbers.holders, numbers.holder_count));
    EK_TRY(share_put_paths(to, numbers.out_of_memory.holders, numbers.out_of_memory.holder_count));
    for (int which = 0; which < 2; which++) {
        /* Their number may grow meanwhile. */
        const int room = share_readers[which](report, index, NULL, 0) + 64;
        ek_memory_sample *samples = ek_calloc((size_t)room, sizeof *samples);
        if (!samples)
            return ek_error_pending();
        int count = share_readers[which](report, index, samples, room);
        count = count < room ? count : room;
        int rc = share_put(to, &count, sizeof count);
        if (rc == 0)
            rc = share_put(to, samples, (size_t)count * sizeof *samples);
        free(samples);
        EK_TRY(rc);
    }
    return 0;
}

static int share_make(share *to, const ek_report *report, const ek_ranks *ranks)
{
    share_head head = {.devices = report->count, .threads = ek_report_thread_count(report)};
    double seconds;
    const ek_report_span *spans = ek_report_spans(report, &head.spans, &seconds);
    if (head.spans < 0)
        return head.spans;
    head.dropped = ek_report_spans_dropped(report);
    ek_report_own_rank(report, &head.rank);
    head.rank.rank = ranks->rank; /* the report may be older than the world */
    snprintf(head.rank.host, sizeof head.rank.host, "%s", ranks->host);
    EK_TRY(share_put(to, &head, sizeof head));
    for (int d = 0; d < head.devices; d++)
        EK_TRY(share_put_device(to, report, d, ranks->rank));
    EK_TRY(share_put(to, spans, (size_t)head.spans * sizeof *spans));
    for (int thread = 0; thread < head.threads; thread++) {
        const int device = ek_report_thread_device(report, thread);
        EK_TRY(share_put(to, &device, sizeof device));
    }
    return 0;
}

/* ---- what a rank takes in ---- */

void ek_sent_clear(ek_sent *sent)
{
    for (int d = 0; d < sent->device_count; d++) {
        free(sent->devices[d].samples[0]);
        free(sent->devices[d].samples[1]);
    }
    free(sent->ranks);
    free(sent->devices);
    free(sent->spans);
    free(sent->thread_devices);
    *sent = (ek_sent){0};
}

static void sent_take(const char **from, void *to, size_t nbytes)
{
    if (nbytes > 0)
        memcpy(to, *from, nbytes);
    *from += nbytes;
}

static int sent_take_paths(const char **from, ek_memory_holder *holders, int count)
{
    for (int i = 0; i < count; i++) {
        holders[i].path = ek_path_join(ek_path_root, *from);
        if (!holders[i].path)
            return EK_E_NO_MEMORY;
        *from += strlen(*from) + 1;
    }
    return 0;
}

static int sent_take_device(ek_sent *sent, const char **from)
{
    ek_sent_device *device = &sent->devices[sent->device_count++];
    ek_out_of_memory *lack = &device->numbers.out_of_memory;
    sent_take(from, &device->numbers, sizeof device->numbers);
    EK_TRY(sent_take_paths(from, device->numbers.holders, device->numbers.holder_count));
    EK_TRY(sent_take_paths(from, lack->holders, lack->holder_count));
    for (int which = 0; which < 2; which++) {
        sent_take(from, &device->counts[which], sizeof(int));
        const size_t count = (size_t)device->counts[which];
        device->samples[which] = ek_calloc(count, sizeof(ek_memory_sample));
        if (!device->samples[which])
            return ek_error_pending();
        sent_take(from, device->samples[which], count * sizeof(ek_memory_sample));
    }
    return 0;
}

/* Adds a rank's data. The rank's devices and threads are numbered after those of earlier ranks. */
static int sent_take_rank(ek_sent *sent, const char *from)
{
    const int devices = sent->device_count, threads = sent->thread_count;
    ek_report_span *spans = sent->spans + sent->span_count;
    share_head head;
    sent_take(&from, &head, sizeof head);
    sent->ranks[sent->rank_count++] = head.rank;
    sent->dropped += head.dropped;
    for (int d = 0; d < head.devices; d++)
        EK_TRY(sent_take_device(sent, &from));
    sent_take(&from, spans, (size_t)head.spans * sizeof *spans);
    for (int i = 0; i < head.spans; i++) {
        spans[i].device += devices;
        spans[i].thread += threads;
    }
    sent->span_count += head.spans;
    for (int i = 0; i < head.threads; i++) {
        int device;
        sent_take(&from, &device, sizeof device);
        sent->thread_devices[sent->thread_count++] = device < 0 ? -1 : device + devices;
    }
    return 0;
}

static int sent_take_all(ek_sent *sent, const char *all, const int64_t *sizes, int count)
{
    size_t devices = 0, spans = 0, threads = 0;
    const char *from = all;
    for (int r = 0; r < count; from += sizes[r++]) {
        share_head head;
        memcpy(&head, from, sizeof head);
        devices += (size_t)head.devices;
        spans += (size_t)head.spans;
        threads += (size_t)head.threads;
    }
    sent->ranks = ek_calloc((size_t)count, sizeof *sent->ranks);
    sent->devices = ek_calloc(devices, sizeof *sent->devices);
    sent->spans = ek_calloc(spans, sizeof *sent->spans);
    sent->thread_devices = ek_calloc(threads, sizeof *sent->thread_devices);
    if (!sent->ranks || !sent->devices || !sent->spans || !sent->thread_devices)
        return ek_error_pending();
    from = all;
    for (int r = 0; r < count; from += sizes[r++])
        EK_TRY(sent_take_rank(sent, from));
    qsort(sent->spans, spans, sizeof *sent->spans, ek_report_span_compare);
    return 0;
}

/* ---- gathering ---- */

/* Sends `mine` to all ranks. An error of one rank is an error of all. */
static int gather_exchange(ek_ranks *ranks, const share *mine, ek_sent *sent)
{
    const int64_t nbytes = mine->count;
    const ek_shape shape = EK_SHAPE(nbytes);
    int64_t *sizes = ek_calloc((size_t)ranks->size, sizeof *sizes);
    ek_tensor *own =
        sizes ? ek_tensor_new(ek_dev_get(ek_cpu()), EK_U8, &shape, EK_CONTIGUOUS) : NULL;
    int rc =
        own ? ranks->gather(ranks, &nbytes, 1, sizes) : ranks->agree(ranks, ek_error_pending());
    if (rc >= 0) {
        memcpy(ek_tensor_address(own), mine->bytes, (size_t)nbytes);
        ek_tensor *all = ranks->join(ranks, own, 0, sizes);
        rc = all ? sent_take_all(sent, ek_tensor_address(all), sizes, ranks->size)
                 : ek_error_pending();
        rc = ranks->agree(ranks, rc);
    }
    free(sizes);
    return rc;
}

/* Does nothing without other ranks. */
static int gather_from(ek_report *report, ek_ranks *ranks)
{
    ek_sent_clear(report->sent);
    if (!ranks && report->rank_count > 1)
        return EK_FAIL(EK_E_STATE,
                       "report: it is of %d ranks, whose process group is no more; write it "
                       "before ek_shutdown",
                       report->rank_count);
    if (!ranks)
        return 0;
    EK_TRY(ek_fork_check());
    ek_scope scope = ek_scope_begin();
    bool had_gradients = ek_set_grad_enabled(false);
    share mine = {0};
    ek_sent sent = {0};
    int rc = share_make(&mine, report, ranks);
    rc = rc < 0 ? ranks->agree(ranks, rc) : gather_exchange(ranks, &mine, &sent);
    if (rc < 0)
        ek_sent_clear(&sent);
    *report->sent = sent;
    free(mine.bytes);
    ek_set_grad_enabled(had_gradients);
    ek_scope_end(&scope);
    return rc;
}

int ek_report_gather(ek_report *report)
{
    EK_TRY(ek_check_handle("report_gather", "the report", report));
    ek_ranks *ranks;
    EK_TRY(ranks_of(report->group, &ranks));
    int rc = gather_from(report, ranks);
    ek_object_release(ranks);
    return rc;
}

/* ---- writing ---- */

/* Finds the ranks that write these reports, by ranks_of. The arguments aren't checked yet. */
static int writing_ranks(ek_report *const *reports, int count, ek_ranks **ranks)
{
    *ranks = NULL;
    if (count == 0)
        return 0;
    return ranks_of(count > 0 && reports && reports[0] ? reports[0]->group : NULL, ranks);
}

static int writing_check(ek_report *const *reports, int count)
{
    for (int i = 1; i < count; i++)
        if (reports[i]->group != reports[0]->group)
            return EK_FAIL(EK_E_INVALID, "report: reports of several process groups are not "
                                         "written together");
    return 0;
}

int ek_report_begin_writing(ek_report *const *reports, int count, int rc)
{
    ek_ranks *ranks;
    EK_TRY(writing_ranks(reports, count, &ranks));
    if (rc >= 0)
        rc = writing_check(reports, count);
    if (ranks && rc < 0)
        rc = ranks->agree(ranks, rc);
    for (int i = 0; i < count && rc >= 0; i++)
        rc = gather_from(reports[i], ranks);
    if (rc >= 0)
        rc = !ranks || ranks->rank == 0;
    ek_object_release(ranks);
    return rc;
}

int ek_report_end_writing(ek_report *const *reports, int count, int rc)
{
    ek_ranks *ranks;
    EK_TRY(writing_ranks(reports, count, &ranks));
    if (ranks)
        rc = ranks->agree(ranks, rc);
    ek_object_release(ranks);
    return rc;
}
