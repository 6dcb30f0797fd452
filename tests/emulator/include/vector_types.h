/* vector_types.h: the small vectors of CUDA, laid out and aligned as there. For C and C++. */
#ifndef EK_EMULATOR_VECTOR_TYPES_H
#define EK_EMULATOR_VECTOR_TYPES_H

#define EK_EMULATOR_VECTORS(type, name, pair, quad)                      \
    typedef struct name##1                                               \
    {                                                                    \
        type x;                                                          \
    }                                                                    \
    name##1;                                                             \
    typedef struct __attribute__((aligned(pair))) name##2                \
    {                                                                    \
        type x, y;                                                       \
    }                                                                    \
    name##2;                                                             \
    typedef struct name##3                                               \
    {                                                                    \
        type x, y, z;                                                    \
    }                                                                    \
    name##3;                                                             \
    typedef struct __attribute__((aligned(quad))) name##4                \
    {                                                                    \
        type x, y, z, w;                                                 \
    }                                                                    \
    name##4;                                                             \
    static inline name##1 make_##name##1(type x)                         \
    {                                                                    \
        name##1 v = {x};                                                 \
        return v;                                                        \
    }                                                                    \
    static inline name##2 make_##name##2(type x, type y)                 \
    {                                                                    \
        name##2 v = {x, y};                                              \
        return v;                                                        \
    }                                                                    \
    static inline name##3 make_##name##3(type x, type y, type z)         \
    {                                                                    \
        name##3 v = {x, y, z};                                           \
        return v;                                                        \
    }                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    {                                                                    \
        name##4 v = {x, y, z, w};                                        \
        return v;                                                        \
    }

EK_EMULATOR_VECTORS(signed char, char, 2, 4)
EK_EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EK_EMULATOR_VECTORS(short, short, 4, 8)
EK_EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EK_EMULATOR_VECTORS(int, int, 8, 16)
EK_EMULATOR_VECTORS(unsigned int, uint, 8, 16)
EK_EMULATOR_VECTORS(long long, longlong, 16, 16)
EK_EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EK_EMULATOR_VECTORS(float, float, 8, 16)
EK_EMULATOR_VECTORS(double, double, 16, 16)

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz)
    {
    }
#endif
} dim3;

#endif
