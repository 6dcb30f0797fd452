/* stage_report.c: report.h and tensor printing, to files and streams; ek_find_batch. */
#include <stdlib.h>
#include <string.h>

#include "fault.h"

static struct {
    ek_module *model, *criterion;
    ek_optimizer *optimizer;
    ek_report *report;
    ek_tensor *x, *y;
    FILE *stream;
} run;

static int step(int64_t batch)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_narrow(run.x, 0, 0, batch), *y = ek_narrow(run.y, 0, 0, batch);
    int status =
        ek_train_step(NULL, .model = run.model, .criterion = run.criterion,
                      .optimizer = run.optimizer, .input = EK_VALUE(x), .target = EK_VALUE(y));
    ek_scope_end(&scope);
    return status;
}

static int make(ek_shard_policy shard)
{
    ek_device_list devices = fault_devices();
    run.model = ek_data_parallel_model(ek_sequential(ek_linear(2, 3), ek_linear(3, 1)),
                                       .device_ids = devices, .shard = shard);
    run.criterion = ek_data_parallel_criterion(ek_mse_loss(), .device_ids = devices);
    run.optimizer = ek_adam(run.model, .lr = 0.01);
    run.x = ek_keep(ek_randn(EK_SHAPE(6, 2)));
    run.y = ek_keep(ek_randn(EK_SHAPE(6, 1)));
    return ek_error_status() < 0 ? ek_error_status() : step(6);
}

static void clear(int row)
{
    if (run.stream)
        fclose(run.stream);
    ek_report_free(run.report);
    ek_optimizer_free(run.optimizer);
    ek_module_free(run.model);
    ek_module_free(run.criterion);
    ek_release(run.x);
    ek_release(run.y);
    memset(&run, 0, sizeof run);
}

/* ---- writing ---- */

static void more(FILE *page, void *user)
{
    fputs(user, page);
}

static int write_json(void)
{
    return ek_report_json(fault_path("report.json"), &run.report, 1);
}

static int write_html(void)
{
    ek_report_page page = {.title = "title",
                           .subtitle = "subtitle",
                           .more = more,
                           .user = "<p>more</p>"};
    return ek_report_html_page(fault_path("report.html"), &run.report, 1, &page);
}

static int write_plain_html(void)
{
    return ek_report_html(fault_path("report.html"), &run.report, 1);
}

static int write_trace(void)
{
    return ek_report_trace(fault_path("report.trace"), run.report);
}

static int write_table(void)
{
    return ek_report_table(run.report, run.stream);
}

static int print_tensor(void)
{
    return ek_tensor_print(run.x, run.stream);
}

/* Calls the queries. Times and memory differ from run to run, so that only errors are noted. */
static int query(void)
{
    ek_memory_sample samples[4];
    const ek_expectation expectation = {.batch = 5, .step_seconds = 1};
    ek_report_set_largest_batch(run.report, 5);
    if (ek_report_expect(run.report, &expectation) < 0)
        return ek_error_status();
    fault_note((double)ek_report_device_count(run.report));
    fault_note((double)ek_report_step_count(run.report));
    fault_note_bytes(ek_report_name(run.report), 3);
    if (!(ek_report_seconds(run.report) >= 0 && ek_report_step_seconds(run.report) >= 0 &&
          ek_report_imbalance(run.report) >= 1))
        fault_broken("a report has its times and its imbalance");
    ek_memory_holder holders[4];
    if (ek_memory_get_holders(ek_host(0), holders, 4) < 0)
        return ek_error_status();
    int count = ek_report_memory(run.report, 0, samples, 4);
    return count < 0 ? count : 0;
}

/* Collects with a new report. */
static int collect(void)
{
    ek_report_free(run.report);
    run.report = ek_report_start(.name = "run", .device_ids = fault_devices());
    int status = run.report ? step(5) : ek_error_status();
    if (status >= 0)
        status = ek_report_live(run.report, fault_path("report.live"),
                                &(ek_report_page){.title = "title", .subtitle = "subtitle"});
    if (status >= 0)
        status = ek_report_scalar(run.report, "loss", 1, 0.5);
    if (status >= 0)
        status = ek_report_step(run.report);
    if (status >= 0)
        status = ek_report_stop(run.report);
    ek_device_report about;
    ek_rank_report rank;
    if (status >= 0)
        status = ek_report_gather(run.report);
    if (status >= 0)
        status = ek_report_get_device(run.report, 0, &about);
    if (status >= 0)
        status = ek_report_get_rank(run.report, ek_report_rank_count(run.report) - 1, &rank);
    if (status >= 0)
        status = query();
    ek_report_free(run.report);
    run.report = NULL;
    return status;
}

static const struct {
    const char *name;
    int (*attempt)(void);
} writers[] = {
    {"json", write_json},   {"html", write_html},   {"plain-html", write_plain_html},
    {"trace", write_trace}, {"table", write_table}, {"print", print_tensor},
    {"collect", collect},
};

static int report_set_up(int row)
{
    int status = make(EK_SHARD_NONE);
    run.stream = fopen("/dev/null", "w");
    run.report = ek_report_start(.name = "run", .device_ids = fault_devices());
    if (status < 0 || !run.report || !run.stream)
        return -1;
    status = step(5);
    if (status >= 0)
        status = ek_report_step(run.report);
    return status < 0 ? status : ek_report_stop(run.report);
}

/* Opens the stream anew if a write to it failed, because its error stays. */
static int report_attempt(int row)
{
    if (ferror(run.stream)) {
        fclose(run.stream);
        run.stream = fopen("/dev/null", "w");
    }
    return writers[row].attempt();
}

FAULT_STAGE(report, FAULT_ROWS(writers), .set_up = report_set_up, .attempt = report_attempt,
            .clear = clear, .files = true);

/* ---- the largest batch; a smaller one, or none, if a device had no memory ---- */

static int find_set_up(int row)
{
    return make(row == 0 ? EK_SHARD_NONE : EK_SHARD_OPTIMIZER);
}

static int find_step(int64_t batch, void *user)
{
    return step(batch);
}

static int find_attempt(int row)
{
    int64_t batch =
        ek_find_batch(.function = find_step, .device_ids = fault_devices(), .model = run.model,
                      .optimizer = run.optimizer, .first = 2, .most = 4);
    fault_note((double)batch);
    return batch < 0 ? (int)batch : 0;
}

static int find_world(int row)
{
    int status = fault_note_parameters(run.model);
    if (status >= 0)
        status = fault_note_optimizer(run.optimizer, run.model);
    return status < 0 ? status : fault_note_gradients(run.model);
}

static const char *const searches[] = {"balanced", "sharded"};

FAULT_STAGE(find_batch, FAULT_ROWS(searches), .set_up = find_set_up, .attempt = find_attempt,
            .world = find_world, .clear = clear, .keeps_world = true, .tolerance = 1);
