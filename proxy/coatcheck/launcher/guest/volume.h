/* Named disks that outlive the sandbox: found by their serial number, mounted where the host says. */
#ifndef VOLUME_H
#define VOLUME_H

#include <stdbool.h>

#include "fields.h"

/* `volume=SERIAL=PATH`*. False with errno and what failed. */
bool volumes_mount(struct fields, const char **what);

#endif
