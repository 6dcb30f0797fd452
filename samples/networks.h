/* networks.h: the networks that the samples train, as a user would write them. */
#ifndef SAMPLES_NETWORKS_H
#define SAMPLES_NETWORKS_H

#include <evenkeel/evenkeel.h>

/* A strided encoder of 3 x 3 convolutions, batch normalisation and ReLU, and a 1 x 1 classifier:
 * (N, 1, H, W) to logits (N, SCENE_CLASSES, H / 8, W / 8). Width 32 gives half a million
 * parameters. */
enum { SCENE_CLASSES = 11, SCENE_IGNORED = 255 };
ek_module *segmentation_network(int width);
/* Upsamples the logits to the target's size (bilinear, align_corners) and takes the mean cross
 * entropy over pixels that are not SCENE_IGNORED. ek_loss(criterion, logits, target): target
 * (N, H, W) of i64 or u8. */
ek_module *segmentation_criterion(void);

/* Takes (N, channels, H, W) and gives logits (N, classes, H, W). On the way in, each of `depth`
 * levels pools pixels 2 x 2 and doubles the channels, beginning with `width`. On the way out, each
 * level is joined with what it was on the way in. H and W are multiples of 2^depth with
 * UNET_TRANSPOSED, and at least 2^depth with UNET_BILINEAR. Batch normalisation is synchronised
 * unless `apart`. */
typedef enum unet_up { UNET_TRANSPOSED, UNET_BILINEAR } unet_up;
ek_module *unet(int channels, int width, int depth, unet_up up, bool apart, int classes);
/* One less the mean over samples of the soft Dice coefficient (Milletari et al. 2016), a mean over
 * the classes that the sample has of
 *
 *     (2 sum p t + 1) / (sum p + sum t + 1)
 *
 * with p the probabilities of the class in the sample and t 1 where it is the label, over pixels
 * that are not SCENE_IGNORED. Target (N, H, W) of i64. Each sample has a coefficient of its own:
 * that of a whole batch would not be a sum over samples, nor so over devices. Classes that a sample
 * lacks are left out: with t = 0 the coefficient falls as 1 / (1 + sum p), so steeply that small
 * classes would never be predicted. */
ek_tensor *f_dice_loss(ek_tensor *logits, ek_tensor *target);
ek_module *dice_loss(void);

/* Pictures (N, 1, GAN_SIDE, GAN_SIDE) to scores (N, 1, 1, 1). NORM_LAYER is over a whole sample,
 * NORM_BATCH per device, NORM_SYNC_BATCH over the whole batch. */
enum { GAN_NOISE = 128, GAN_SIDE = 32 }; /* numbers of noise per picture; height and width */
enum { NORM_NONE, NORM_LAYER, NORM_INSTANCE, NORM_BATCH, NORM_SYNC_BATCH, NORMS };
ek_module *gan_critic(int width, int norm);
/* Noise (N, GAN_NOISE, 1, 1) to pictures in (-1, 1). Batch normalisation is synchronised, so that
 * several devices make the same pictures as one device. */
ek_module *gan_generator(int width);

/* StyleGAN2 for pictures of STYLEGAN_SIDE x STYLEGAN_SIDE. Batches are (groups, STYLEGAN_GROUP,
 * ...). The discriminator compares the pictures of a group (minibatch standard deviation). Batches
 * are cut along dimension 0, so that groups stay whole and several devices compute what one device
 * computes. */
enum {
    STYLEGAN_GROUP = 4,
    STYLEGAN_SIDE = 32,
    STYLEGAN_LAYERS = 8,                        /* layers with a separate w in style mixing */
    STYLEGAN_NOISE = 16 + 2 * (64 + 256 + 1024) /* numbers of noise per picture */
};
/* ek_forward(generator, z, cut, noise): pictures (groups, STYLEGAN_GROUP, 1, side, side), of z
 * (groups, STYLEGAN_GROUP, 2, latent), cut (groups, STYLEGAN_GROUP) of i64, and noise
 * (groups, STYLEGAN_GROUP, STYLEGAN_NOISE). The first `cut` layers get the first latent.
 *
 * ek_forward(generator, z, cut, noise, direction), with directions in the shape of pictures: path
 * lengths (groups, STYLEGAN_GROUP). Its children "mapping" and "synthesis" take no groups: z
 * (N, latent) to w, and w (N, STYLEGAN_LAYERS, latent) with noise (N, STYLEGAN_NOISE) to pictures.
 */
ek_module *stylegan_generator(int width, int latent);
/* Pictures to scores (groups, STYLEGAN_GROUP). */
ek_module *stylegan_critic(int width);

/* Gives the noise in pictures (N, channels, H, W), in their shape: ek_forward(unet, x, t, c), of
 * times t (N) in i64, and classes c (N) in i64, where the number `classes` means no class. H and W
 * are multiples of 2^depth. `width`, the channels of the first level, is a multiple of
 * DIFFUSION_GROUPS. Each level has twice the channels of the level before. Residual blocks (group
 * norm, SiLU, convolution) add features of the time and of the class. The innermost level has
 * self-attention. */
enum { DIFFUSION_GROUPS = 8 };
ek_module *diffusion_unet(int channels, int width, int depth, int classes);

/* Pictures (N, channels, H, W), H and W multiples of 4, to logits (N, classes). `width` is that of
 * the first of three stages of `blocks` basic blocks, 1 to RESNET_MOST_BLOCKS; batch normalisation
 * is synchronised unless `apart`. */
enum { RESNET_MOST_BLOCKS = 64 };
ek_module *resnet(int channels, int width, int blocks, bool apart, int classes);

/* Re-identification. Takes pictures (N, 1, H, W), H and W multiples of 4. In training, gives a list
 * of features (N, features), for distances, and logits (N, identities). In evaluation, gives
 * features (N, features) after a batch normalisation, to search by. All batch normalisation is
 * synchronised. */
ek_module *reid_network(int width, int blocks, int features, int identities);
/* The mean over samples i of max(0, margin + max d(i, p) - min d(i, n)) with Euclidean distances d,
 * p over the other samples of i's identity and n over those of other identities (Hermans et al.
 * 2017, "batch hard"). A sample without such a p or n counts as 0. Features (N, F), identities (N)
 * of i64. It is not a sum over samples: each is compared with the whole batch. */
ek_tensor *f_batch_hard_triplet_loss(ek_tensor *features, ek_tensor *identities, double margin);

/* Takes letters (N, L) of i64, below `letters`, and optionally lengths (N) of 1 to L. Gives logits
 * (N, classes, L): after each letter, what the sequence is by the letters so far. An embedding,
 * recurrent layers, dropout between and after the layers, and a linear head. Logits beyond a
 * sample's length mean nothing. */
enum { CELL_LSTM, CELL_GRU, CELL_RNN };
typedef struct letter_options {
    int cell;
    int64_t letters, embedded, hidden, classes;
    int layers;
    double dropout;
} letter_options;
ek_module *letter_network(letter_options options);

#endif
