/* units.c: which parameters are gathered together (gathering.h). */
#include "comm/exchange.h"
#include "core/map.h"
#include "evenkeel/parallel.h"
#include "nn/module_table.h"
#include "parallel/gathering.h"

enum { SHARE = 16 }; /* a unit that wasn't marked has at most 1/16 of all bytes, or one module */

typedef struct unit_walk {
    ek_map places;      /* per parameter: its place in `units` */
    int units_count;    /* units so far */
    size_t limit;       /* bytes of a unit that wasn't marked */
    size_t open_nbytes; /* bytes of the last unit, if it may take further modules; else `limit` */
} unit_walk;

/* Returns the bytes of the module's parameters. Parameters that occur twice count twice. */
static size_t unit_nbytes(const ek_module *module)
{
    size_t nbytes = 0;
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            nbytes += unit_nbytes(*member.slot.module);
        else if (member.kind == EK_MEMBER_PARAMETER && *member.slot.tensor)
            nbytes += ek_comm_nbytes(*member.slot.tensor);
    }
    return nbytes;
}

static bool unit_has_marked(const ek_module *module)
{
    bool any = module->members->is_shard_unit;
    for (int i = 0; i < ek_module_member_count(module) && !any; i++) {
        ek_member member = ek_module_member(module, i);
        any = member.kind == EK_MEMBER_MODULE && *member.slot.module &&
              unit_has_marked(*member.slot.module);
    }
    return any;
}

/* Returns the open unit if it has room for nbytes, else a new one. */
static int unit_with_room(unit_walk *walk, size_t nbytes)
{
    if (walk->open_nbytes >= walk->limit || walk->open_nbytes + nbytes > walk->limit) {
        walk->units_count++;
        walk->open_nbytes = 0;
    }
    walk->open_nbytes += nbytes;
    return walk->units_count - 1;
}

static void unit_add(const unit_walk *walk, const ek_tensor *parameter, int unit)
{
    int *place = ek_map_find(&walk->places, parameter);
    if (place && *place < 0)
        *place = unit;
}

static void unit_visit(unit_walk *walk, const ek_module *module);

/* Adds the module's parameters to a unit. Marked modules inside of it are units. */
static void unit_take(unit_walk *walk, const ek_module *module, int unit)
{
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        const ek_module *child = member.kind == EK_MEMBER_MODULE ? *member.slot.module : NULL;
        if (member.kind == EK_MEMBER_PARAMETER && *member.slot.tensor)
            unit_add(walk, *member.slot.tensor, unit);
        else if (child && child->members->is_shard_unit)
            unit_visit(walk, child);
        else if (child)
            unit_take(walk, child, unit);
    }
}

/* Visits the children of a module that is too large for a unit, and its own parameters. */
static void unit_cut(unit_walk *walk, const ek_module *module)
{
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            unit_visit(walk, *member.slot.module);
        else if (member.kind == EK_MEMBER_PARAMETER && *member.slot.tensor)
            unit_add(walk, *member.slot.tensor,
                     unit_with_room(walk, ek_comm_nbytes(*member.slot.tensor)));
    }
}

static void unit_visit(unit_walk *walk, const ek_module *module)
{
    size_t nbytes = unit_nbytes(module);
    if (nbytes == 0)
        return;
    if (module->members->is_shard_unit) {
        int unit = walk->units_count++;
        walk->open_nbytes = walk->limit;
        unit_take(walk, module, unit);
        walk->open_nbytes = walk->limit;
    } else if (nbytes <= walk->limit && !unit_has_marked(module)) {
        unit_take(walk, module, unit_with_room(walk, nbytes));
    } else {
        unit_cut(walk, module);
    }
}

int ek_units_assign(ek_module *module, ek_tensor *const *parameters, int count, int *units)
{
    unit_walk walk = {.limit = 0};
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++) {
        void **place = ek_map_at(&walk.places, parameters[i]);
        walk.limit += ek_comm_nbytes(parameters[i]);
        units[i] = -1;
        if (place)
            *place = &units[i];
        else
            rc = ek_error_pending();
    }
    walk.limit /= SHARE;
    walk.open_nbytes = walk.limit;
    if (rc >= 0)
        unit_visit(&walk, module);
    ek_map_clear(&walk.places);
    for (int i = 0; i < count; i++)
        units[i] = units[i] < 0 ? 0 : units[i];
    return rc < 0 ? rc : walk.units_count > 0 ? walk.units_count : 1;
}

int ek_shard_unit(ek_module *module)
{
    if (!module)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "shard_unit: the module is NULL");
    EK_TRY(ek_check_alive("shard_unit", "the module", module));
    module->members->is_shard_unit = true;
    return 0;
}
