/* json_tree.h: JSON files as trees, for tests that look into them. */
#ifndef EK_TESTS_JSON_TREE_H
#define EK_TESTS_JSON_TREE_H

#include "core/json.h"
#include "unit.h"

/* A node lies before its descendants. */
typedef struct json_node {
    const char *key; /* NULL outside of objects */
    ek_json_value value;
    int span; /* of nodes: itself, and all below */
} json_node;

typedef struct json_tree {
    char *text;
    json_node *nodes;
    int count, room;
} json_tree;

/* for (const json_node *each = ...) over the elements of an array or object. */
#define json_each(each, nest) \
    for (const json_node *each = (nest) + 1; each < (nest) + (nest)->span; each += each->span)

static inline void json_add(json_tree *tree, ek_json_reader *reader, const char *key)
{
    int more = 0, place = tree->count;
    ek_json_value value;
    if (ek_json_read(reader, &value) < 0)
        ck_abort_msg("byte %zu: %s", reader->at, reader->error);
    if (tree->count == tree->room) {
        tree->room = 2 * tree->room + 64;
        tree->nodes = realloc(tree->nodes, (size_t)tree->room * sizeof *tree->nodes);
        ck_assert_ptr_nonnull(tree->nodes);
    }
    tree->nodes[tree->count++] = (json_node){key, value, 1};
    if (value.kind == EK_JSON_ARRAY || value.kind == EK_JSON_OBJECT)
        while ((more = ek_json_next(reader, &key)) > 0)
            json_add(tree, reader, key);
    if (more < 0)
        ck_abort_msg("byte %zu: %s", reader->at, reader->error);
    tree->nodes[place].span = tree->count - place;
}

/* The root of a file, which ends with it. */
static inline const json_node *json_load(json_tree *tree, const char *path)
{
    FILE *stream = fopen(path, "rb");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_eq(fseek(stream, 0, SEEK_END), 0);
    size_t nbytes = (size_t)ftell(stream);
    rewind(stream);
    *tree = (json_tree){.text = malloc(nbytes + 1)};
    ck_assert_ptr_nonnull(tree->text);
    ck_assert_uint_eq(fread(tree->text, 1, nbytes, stream), nbytes);
    fclose(stream);
    tree->text[nbytes] = '\0'; /* ends a number, for strtod */
    ek_json_reader reader = {.text = tree->text, .nbytes = nbytes};
    json_add(tree, &reader, NULL);
    ck_assert_msg(ek_json_end(&reader) == 0, "%s", reader.error);
    return tree->nodes;
}

static inline void json_free(json_tree *tree)
{
    free(tree->text);
    free(tree->nodes);
}

static inline int json_count(const json_node *nest)
{
    int count = 0;
    json_each(each, nest) count++;
    return count;
}

/* Returns NULL if there is no such member. */
static inline const json_node *json_find(const json_node *object, const char *key)
{
    json_each(each, object) if (each->key && strcmp(each->key, key) == 0) return each;
    return NULL;
}

static inline const json_node *json_at(const json_node *object, const char *key)
{
    const json_node *found = json_find(object, key);
    if (!found)
        ck_abort_msg("there is no \"%s\"", key);
    return found;
}

static inline const json_node *json_item(const json_node *array, int index)
{
    json_each(each, array) if (index-- == 0) return each;
    ck_abort_msg("the array is shorter");
}

static inline const char *json_text_at(const json_node *object, const char *key)
{
    const ek_json_value *value = &json_at(object, key)->value;
    ck_assert_msg(value->kind == EK_JSON_STRING, "\"%s\" is no text", key);
    return value->text;
}

static inline double json_number_at(const json_node *object, const char *key)
{
    const ek_json_value *value = &json_at(object, key)->value;
    ck_assert_msg(value->kind == EK_JSON_INTEGER || value->kind == EK_JSON_REAL,
                  "\"%s\" is no number", key);
    return strtod(value->text, NULL);
}

#endif
