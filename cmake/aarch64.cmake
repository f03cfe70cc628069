# Cross-compiling for 64-bit ARM with Debian's gcc-aarch64-linux-gnu against the libraries that
# scripts/fetch-sysroot puts into the cache; what is built runs under qemu-user, tests included.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

if(DEFINED ENV{OATO_CACHE})
  set(CMAKE_SYSROOT $ENV{OATO_CACHE}/aarch64-sysroot)
else()
  set(CMAKE_SYSROOT $ENV{HOME}/.cache/oato/aarch64-sysroot)
endif()
if(NOT EXISTS ${CMAKE_SYSROOT})
  message(FATAL_ERROR "no ${CMAKE_SYSROOT}; scripts/fetch-sysroot makes it")
endif()

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
