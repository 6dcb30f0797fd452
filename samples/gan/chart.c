#include "gan/chart.h"

#include <inttypes.h>

#include "report/page.h"

static ek_page_series series_of(const run_records *records, record_series series, const char *name)
{
    return (ek_page_series){name, records->values[series], (int)records->counts[series], NULL};
}

int chart_write(const char *path, const run_settings *settings, int devices,
                const run_records *records)
{
    const ek_page_series critic[] = {series_of(records, CRITIC_LOSSES, "critic loss"),
                                     series_of(records, PENALTIES, "penalty"),
                                     series_of(records, WASSERSTEIN, "Wasserstein estimate")};
    const ek_page_series generator = series_of(records, GENERATOR_LOSSES, "generator loss");
    const ek_page_series norms = series_of(records, GRADIENT_NORMS, "norm");
    FILE *page = fopen(path, "w");

    if (!page)
        return -1;
    ek_page_begin(page, "Fashion-MNIST from noise");
    fprintf(page,
            "<p class=\"faint\">DCGAN of width %" PRId64 ", %s loss, %s penalty of weight %g, "
            "critic norm %s, %s on %d device%s, batch %" PRId64 ", %" PRId64
            " critic steps per generator step, learning rate %g, seed %" PRId64 ". %" PRId64
            " generator steps.</p>\n",
            settings->width, loss_names[settings->loss], penalty_names[settings->penalty],
            settings->weight, norm_names[settings->norm], mode_names[settings->mode], devices,
            devices == 1 ? "" : "s", settings->batch, settings->critic_steps, settings->lr,
            settings->seed, records->counts[GENERATOR_LOSSES]);
    ek_page_lines(page, "Critic", "critic step", critic, 3);
    fputs("<div class=\"grid\">\n", page);
    ek_page_lines(page, "Generator loss", "step", &generator, 1);
    ek_page_lines(page, "Norm of the critic's gradient", "critic step", &norms, 1);
    fputs("</div>\n", page);
    ek_page_end(page);
    int failed = ferror(page);
    return fclose(page) != 0 || failed ? -1 : 0;
}
