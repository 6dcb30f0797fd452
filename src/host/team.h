/* team.h: whether the threads of a team can be had. */
#ifndef EK_HOST_TEAM_H
#define EK_HOST_TEAM_H

/* How many of `count` threads can be started beside each other now, limits of the system and of
 * the user being what they are; they have ended on return. Any thread. */
int ek_team_try(int count);

#endif
