/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: names of kernels, from any text; variants, from any numbers. */
#include "target.h"

/* The source itself: its branches are counted. */
#include "../../src/variant.c"

/* A name is accepted only if it is exactly the one that its variant has; else the variant is left alone. */
static void parse(const uint8_t *data, size_t size)
{
    char again[SMLA_VARIANT_NAME_MAX], *text = malloc(size + 1);
    struct smla_variant variant, untouched;
    REQUIRE(text);
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    memset(&variant, 0x5a, sizeof variant);
    untouched = variant;
    if (smla_variant_parse(text, &variant)) {
        REQUIRE(smla_variant_valid(&variant));
        smla_variant_name(&variant, again);
        REQUIRE(strcmp(again, text) == 0);
    } else {
        REQUIRE(memcmp(&variant, &untouched, sizeof variant) == 0);
    }
    free(text);
}

/* A valid variant has a name that is its own, whole defines and shared memory within its profile. */
static void write_and_read(const struct smla_variant *variant)
{
    char name[SMLA_VARIANT_NAME_MAX], defines[SMLA_VARIANT_DEFINES][SMLA_DEFINE_MAX];
    struct smla_variant again;
    if (!smla_variant_valid(variant))
        return;
    smla_variant_name(variant, name);
    REQUIRE(smla_variant_parse(name, &again) && memcmp(&again, variant, sizeof again) == 0);
    REQUIRE(smla_variant_defines(variant, defines) == SMLA_VARIANT_DEFINES);
    REQUIRE(strcmp(defines[0] + strlen("-DSMLA_NAME="), name) == 0);
    REQUIRE(smla_variant_shared_bytes(variant) <= smla_profile_shared_limit(variant->profile));
}

/* A byte per field, near what is valid. */
static void near_valid(const uint8_t *data)
{
    static const int widths[] = {0, 128, 512, 2048, -1, 127, 4096, 2147483647};
    const struct smla_variant variant = {
        .format = data[0] % 16 - 1,
        .latent_dim = (data[1] % 16) * 64 + data[1] / 64 % 2,
        .rope_dim = (data[2] % 8 - 1) * 32,
        .query = data[3] % 8 - 1,
        .caches = data[4] % 4,
        .head_groups = data[5] % 16,
        .dim_split = data[6] % 4,
        .key_groups = data[7] % 16,
        .stages = data[8] % 32,
        .blocks_per_sm = data[9] % 4,
        .topk_max = widths[data[10] % 8],
        .profile = data[11] % 8,
    };
    write_and_read(&variant);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct smla_variant variant;
    parse(data, size);
    if (size >= 12)
        near_valid(data);
    if (size >= sizeof variant) {
        memcpy(&variant, data, sizeof variant);
        write_and_read(&variant);
    }
    return 0;
}
