/* Random trees of modules, in which children are replaced, shared, wrapped and copied, and tensors
 * tied and left out, at random places, before training and between two steps. One device, several
 * devices and shards compute the same; files and copies keep what is shared. A case is its seed. */
#include "archive_setup.h"
#include "kit/models.h"
#include "kit/tensors.h"

enum { WIDTH = 4, MOST = 60, CHANGES = 14, BATCH = 7, CASES = 40 };

/* ---- trees ---- */

typedef struct tree {
    ek_module *net;
    ek_generator *draws;
    ek_device home;
    char paths[MOST][120]; /* of what may be replaced, as list_* wrote them */
    int count;
} tree;

static int below(const tree *t, int n)
{
    return (int)(ek_random_u32(t->draws) % (uint32_t)n);
}

typedef struct residual {
    ek_module module;
    ek_module *body;
    ek_tensor *scale;
} residual;

static ek_value residual_forward(ek_module *module, const ek_args *args)
{
    const residual *self = (residual *)module;
    ek_tensor *x = ek_arg_tensor(args, 0), *y = ek_apply(self->body, x);
    return ek_value_of_tensor(ek_add(x, self->scale ? ek_mul(y, self->scale) : y));
}

MODULE_TYPE(residual, residual)

static ek_module *residual_new(ek_module *body)
{
    residual *self = new_module(&residual_type);
    assert_ok(ek_register_module(&self->module, "body", &self->body, body));
    assert_ok(
        ek_register_parameter(&self->module, "scale", &self->scale, ek_full(0.4, EK_SHAPE(WIDTH))));
    return &self->module;
}

/* From features to as many features. */
static ek_module *node_new(const tree *t, int depth)
{
    switch (below(t, depth > 0 ? 8 : 5)) {
    case 0:
        return ek_tanh();
    case 1:
        return ek_layer_norm(EK_SHAPE(WIDTH));
    case 2:
        return ek_linear(WIDTH, WIDTH, .bias = below(t, 2));
    case 3:
        return ek_prelu(WIDTH);
    case 4:
        return ek_weight_norm(ek_linear(WIDTH, WIDTH));
    case 5:
        return ek_checkpoint(node_new(t, depth - 1));
    case 6:
        return residual_new(node_new(t, depth - 1));
    default: {
        ek_module *first = node_new(t, depth - 1), *second = node_new(t, depth - 1);
        return ek_sequential(first, second);
    }
    }
}

/* ---- changes ---- */

typedef struct counting {
    const ek_module *one; /* NULL: all */
    int count;
} counting;

static int count_visit(const char *path, ek_module *module, void *user)
{
    counting *c = user;
    c->count += !c->one || c->one == module;
    return 0;
}

/* Returns in how many places `one` is in the module, or how many places there are. */
static int places_in(ek_module *module, const ek_module *one)
{
    counting c = {.one = one};
    assert_ok(ek_module_apply(module, count_visit, &c));
    return c.count;
}

static int fill(const char *path, ek_tensor *parameter, void *user)
{
    return ek_init_uniform(parameter, -0.7, 0.7);
}

static ek_module *node_settled(const tree *t, ek_module *module)
{
    assert_made(module);
    assert_ok(ek_module_parameters(module, fill, NULL));
    assert_ok(ek_module_to_dtype(module, EK_F64));
    assert_ok(ek_module_to_device(module, t->home));
    return module;
}

static void list_path(tree *t, const char *path)
{
    if (strncmp(path, "body.", 5) == 0 && t->count < MOST)
        snprintf(t->paths[t->count++], sizeof t->paths[0], "%s", path);
}

static int list_module(const char *path, ek_module *module, void *user)
{
    list_path(user, path);
    return 0;
}

static int list_tensor(const char *path, ek_tensor *tensor, void *user)
{
    list_path(user, path);
    return 0;
}

/* Writes the paths of all modules, or of all parameters, and returns one of them. */
static const char *list_modules(tree *t)
{
    t->count = 0;
    assert_ok(ek_module_modules(t->net, list_module, t));
    return t->paths[below(t, t->count)];
}

static const char *list_tensors(tree *t)
{
    t->count = 0;
    assert_ok(ek_module_parameters(t->net, list_tensor, t));
    return t->count > 0 ? t->paths[below(t, t->count)] : NULL;
}

/* What cannot be done at this place must be refused, and leaves the tree as it was. */
static void may_be_refused(int status)
{
    if (status >= 0)
        return;
    const char *told = ek_error_message();
    ck_assert_msg(strstr(told, "a part of itself") || strstr(told, "no parameter \"weight\"") ||
                      strstr(told, "computed from") || strstr(told, "cannot be absent") ||
                      strstr(told, "already"),
                  "%s", told);
    ek_error_clear();
}

static void tie(tree *t)
{
    const char *path = list_tensors(t);
    if (!path)
        return;
    ek_tensor *one = ek_module_tensor(t->net, path), *other = NULL;
    const ek_shape shape = ek_tensor_shape(one);
    for (int i = 0, first = below(t, t->count); i < t->count; i++) {
        ek_tensor *candidate = ek_module_tensor(t->net, t->paths[(first + i) % t->count]);
        const ek_shape its = ek_tensor_shape(candidate);
        if (candidate != one && ek_shape_equal(&shape, &its))
            other = candidate;
    }
    if (other)
        may_be_refused(ek_module_set_tensor(t->net, path, other));
    else if (below(t, 4) == 0 && strstr(path, "bias"))
        may_be_refused(ek_module_set_tensor(t->net, path, NULL));
}

static void change(tree *t)
{
    const int kind = below(t, 8);
    if (kind >= 5) {
        tie(t);
        return;
    }
    const char *path = list_modules(t);
    ek_module *other = ek_module_at(t->net, t->paths[below(t, t->count)]);
    assert_made(other);
    const bool small = places_in(other, NULL) + places_in(t->net, NULL) <= MOST;
    if (kind < 2)
        assert_ok(ek_module_set(t->net, path, node_settled(t, node_new(t, 1))));
    else if (kind == 2 && places_in(t->net, ek_module_at(t->net, path)) == 1)
        may_be_refused(ek_module_set(t->net, path, ek_weight_norm(ek_module_at(t->net, path))));
    else if (kind == 3 && small)
        may_be_refused(ek_module_set(t->net, path, other));
    else if (kind == 4 && small)
        assert_ok(ek_module_set(t->net, path, ek_module_copy(other)));
}

static tree tree_new(int seed, ek_device home)
{
    tree t = {.draws = ek_generator_new((uint64_t)seed + 1), .home = home};
    ek_manual_seed((uint64_t)seed);
    ek_module *nodes[3];
    for (int i = 0; i < 3; i++)
        nodes[i] = node_new(&t, 2);
    t.net = ek_sequential_named({"in", ek_linear(WIDTH, WIDTH)},
                                {"body", ek_sequential(nodes[0], nodes[1], nodes[2])});
    node_settled(&t, t.net);
    for (int i = 0; i < CHANGES; i++)
        change(&t);
    return t;
}

static void tree_free(tree *t)
{
    ek_module_free(t->net);
    ek_generator_free(t->draws);
}

/* ---- training ---- */

typedef struct way {
    int devices; /* 0: the module itself */
    bool balanced;
    ek_shard_policy shard;
    ek_offload_policy offload;
} way;

static int append(const char *path, ek_tensor *parameter, void *user)
{
    ek_tensor **all = user;
    ek_tensor *flat = ek_reshape(ek_to_device(ek_detach(parameter), ek_cpu()), EK_SHAPE(-1));
    ek_tensor *both[] = {*all, flat};
    *all = *all ? ek_cat(both, 2, 0) : flat;
    return *all ? 0 : ek_error_status();
}

/* Steps, changes the tree, and steps again. Returns both losses and then the parameters. */
static ek_tensor *train(tree *t, const way *w)
{
    ek_tensor *losses = ek_zeros(EK_SHAPE(2), EK_F64), *made = losses;
    ek_device_list devices = ek_devices(test_kind(), w->devices);
    ek_module *criterion = ek_mse_loss();
    if (w->devices > 0 && w->balanced) {
        t->net = ek_data_parallel_model(t->net, .device_ids = devices, .shard = w->shard,
                                        .offload = w->offload);
        criterion = ek_data_parallel_criterion(criterion, .device_ids = devices);
    } else if (w->devices > 0) {
        t->net = ek_data_parallel(t->net, .device_ids = devices, .shard = w->shard,
                                  .offload = w->offload);
    }
    assert_made(t->net);
    for (int step = 0; step < 2; step++) {
        ek_optimizer *optimizer = ek_adam(t->net, .lr = 0.01, .eps = 1e-3);
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = normal(5 + (uint64_t)step, EK_SHAPE(BATCH, WIDTH), EK_F64, ek_cpu());
        ek_value y = ek_forward(t->net, w->devices ? x : ek_to_device(x, t->home));
        ek_tensor *target = normal(9, EK_SHAPE(BATCH, WIDTH), EK_F64, ek_cpu());
        if (!w->balanced)
            target = ek_to_device(target, t->home);
        ek_tensor *loss = ek_loss(criterion, y, target);
        double value;
        assert_ok(ek_backward(loss));
        assert_ok(ek_step(optimizer));
        assert_ok(ek_item(loss, &value));
        ((double *)ek_tensor_data(losses))[step] = value;
        ek_scope_end(&scope);
        ek_optimizer_free(optimizer);
        for (int i = 0; i < CHANGES / 3 && step == 0; i++)
            change(t);
    }
    assert_ok(ek_module_parameters(t->net, append, &made));
    ek_module_free(criterion);
    return made;
}

static const way ways[] = {
    {.devices = 2},
    {.devices = 3, .balanced = true},
    {.devices = 2, .balanced = true, .shard = EK_SHARD_OPTIMIZER},
    {.devices = 3, .shard = EK_SHARD_PARAMETERS},
    {4, true, EK_SHARD_PARAMETERS, EK_OFFLOAD_OPTIMIZER},
    {4, false, EK_SHARD_OPTIMIZER, EK_OFFLOAD_OPTIMIZER},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* ---- files and copies ---- */

static void assert_same(ek_module *a, ek_module *b)
{
    char first[65], second[65];
    assert_ok(ek_module_sha256(a, first));
    assert_ok(ek_module_sha256(b, second));
    ck_assert_str_eq(first, second);
}

static int is_saved(const char *path, ek_tensor *tensor, void *archive)
{
    return ek_archive_has(archive, path) ? 0 : ek_error(EK_E_USER, "%s is missing", path);
}

TEST_LOOP(random_trees_train_alike, 0, test_is_short() ? CASES / 8 : CASES)
{
    tree alone = tree_new(_i, test_device(0)), twin = tree_new(_i, test_device(0));
    ek_tensor *wanted = train(&alone, &(way){0});
    ek_module *copy = ek_module_copy(alone.net);
    assert_made(copy);
    assert_same(copy, alone.net);
    ek_archive *archive = ek_archive_new();
    assert_ok(ek_archive_put_module(archive, "", alone.net));
    archive = through_file(archive);
    assert_ok(ek_module_parameters(alone.net, is_saved, archive));
    for (int k = 0; k < 2; k++) {
        const way *w = &ways[(_i + 3 * k) % WAYS];
        tree other = tree_new(_i, test_device(0));
        assert_same(other.net, twin.net); /* a tree is a function of its seed */
        assert_close_norm(train(&other, w), wanted, 1e-11);
        assert_ok(ek_archive_load_module(archive, "", other.net));
        assert_same(other.net, alone.net);
        tree_free(&other);
    }
    ek_archive_free(archive);
    ek_module_free(copy);
    tree_free(&alone);
    tree_free(&twin);
}
